"""Writing text: a key/value cache, a captured CUDA graph on GPUs, and the usual ways to choose a token."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from traindoctor.errors import ConfigError, TraindoctorError
from traindoctor.lm.config import MOST_SEED
from traindoctor.lm.model import Cache, Transformer
from traindoctor.lm.tokenizer import Tokenizer

# A captured graph attends over this many places or the next power of two: few graphs, little waste.
SHORTEST_GRAPH = 256
# A code point that is not complete yet decodes to this.
HALF_CHARACTER = "\ufffd"


class NotFinite(TraindoctorError):
    """A model that gives no probabilities any more."""

    def __init__(self) -> None:
        super().__init__(
            "the model gives NaN or infinity instead of probabilities: its run has diverged, "
            "choose an earlier checkpoint with --checkpoint",
            slug="not-finite",
        )


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen from the logits. Temperature 0 is greedy."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"--temperature must be 0 (greedy) or above, not {self.temperature}")
        if self.top_k < 0:
            raise ConfigError(f"--top-k must be 0 (off) or above, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p must be above 0 and at most 1, not {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ConfigError(f"--min-p must be at least 0 and below 1, not {self.min_p}")
        if not 0 <= self.seed <= MOST_SEED:
            raise ConfigError(f"--seed must be at least 0 and at most {MOST_SEED}, not {self.seed}")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                f"--repetition-penalty must be above 0 (1: off), not {self.repetition_penalty}"
            )


def choose(
    logits: Tensor, sampling: Sampling, generator: torch.Generator, seen: Tensor | None = None
) -> Tensor:
    """Next tokens (B, 1) from logits (B, V); `seen` (B, V) marks the tokens the penalty falls on."""
    logits = logits.float()
    if seen is not None:
        penalty = sampling.repetition_penalty
        logits = torch.where(
            seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits
        )
    if sampling.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = keep_likely(logits / sampling.temperature, sampling)
    likelihood = logits.softmax(dim=-1)
    # A GPU would have to be waited for; the draw itself refuses there.
    if likelihood.device.type == "cpu" and not torch.isfinite(likelihood).all():
        raise NotFinite
    return torch.multinomial(likelihood, 1, generator=generator)


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """Sets logits outside top-k, top-p and min-p to -inf; the likeliest token always stays."""
    least = torch.tensor(float("-inf"), device=logits.device)
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = torch.where(logits < kth, least, logits)
    if sampling.min_p > 0:
        p = logits.softmax(dim=-1)
        logits = torch.where(p < sampling.min_p * p.amax(dim=-1, keepdim=True), least, logits)
    if sampling.top_p < 1:
        ordered, index = logits.sort(dim=-1, descending=True)
        p = ordered.softmax(dim=-1)
        before = p.cumsum(dim=-1) - p  # the mass of the likelier ones; 0 for the first
        ordered = torch.where(before >= sampling.top_p, least, ordered)
        logits = torch.empty_like(logits).scatter_(-1, index, ordered)
    return logits


class EagerDecoder:
    """Shapes grow with the text: the best way on a CPU."""

    def __init__(self, model: Transformer, batch: int, length: int) -> None:
        self.model = model
        self.cache = Cache(model, batch, length, model.embedding.weight.dtype)
        self.position = 0

    def start(self, prompt: Tensor) -> Tensor:
        self.position = prompt.shape[1]
        return self.model.prefill(prompt, self.cache)

    def step(self, tokens: Tensor) -> Tensor:
        logits = self.model.decode(tokens, self.position, self.cache)
        self.position += 1
        return logits


class GraphDecoder:
    """One captured CUDA graph per power of two of the length: a step is one launch.

    The graph also takes the greedy choice and moves on, so that greedy text needs no other kernel.
    """

    def __init__(self, model: Transformer, batch: int, length: int, *, compiled: bool = False):
        self.model = model
        self.cache = Cache(model, batch, length, model.embedding.weight.dtype)
        device = model.embedding.weight.device
        self.tokens = torch.zeros((batch, 1), dtype=torch.long, device=device)
        self.where = torch.zeros(1, dtype=torch.long, device=device)
        self.written = torch.zeros((batch, length + 1), dtype=torch.long, device=device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.decode: Callable[..., Tensor] = (
            torch.compile(model.decode_static, dynamic=False) if compiled else model.decode_static
        )
        self.position = 0

    def start(self, prompt: Tensor) -> Tensor:
        self.position = prompt.shape[1]
        return self.model.prefill(prompt, self.cache)

    def step(self, tokens: Tensor) -> Tensor:
        self._place(tokens)
        return self._replay()

    def greedy(self, first: Tensor, count: int) -> Tensor:
        """`first` (B, 1) and `count - 1` greedy tokens after it, without a word to the host."""
        begin = self.position
        self._place(first)
        for _ in range(count - 1):
            self._replay()
        return self.written[:, begin : begin + count].clone()

    def _place(self, tokens: Tensor) -> None:
        self.tokens.copy_(tokens)
        self.where.fill_(self.position)
        self.written[:, self.position : self.position + 1] = tokens

    def _replay(self) -> Tensor:
        length = SHORTEST_GRAPH
        while length <= self.position:
            length *= 2
        length = min(length, self.cache.length)
        if length not in self.graphs:
            self.graphs[length] = self._capture(length)
        graph, logits = self.graphs[length]
        graph.replay()
        self.position += 1
        return logits

    def _one_step(self, length: int) -> Tensor:
        logits = self.decode(self.tokens, self.where, self.cache, length)
        self.tokens.copy_(logits.argmax(dim=-1, keepdim=True))
        self.where.add_(1)
        self.written.index_copy_(1, self.where, self.tokens)
        return logits

    def _capture(self, length: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        kept = self.tokens.clone(), self.where.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries allocate their workspaces in the first calls
                self._restore(kept)
                self._one_step(length)
            self._restore(kept)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._one_step(length)
        self._restore(kept)
        return graph, logits

    def _restore(self, kept: tuple[Tensor, Tensor]) -> None:
        self.tokens.copy_(kept[0])
        self.where.copy_(kept[1])


def make_decoder(model: Transformer, batch: int, length: int) -> EagerDecoder | GraphDecoder:
    if model.embedding.weight.device.type == "cuda":
        return GraphDecoder(model, batch, length)
    return EagerDecoder(model, batch, length)


@torch.inference_mode()
def generate(
    model: Transformer,
    prompt: Tensor,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    on_tokens: Callable[[Tensor], bool] | None = None,
    decoder: EagerDecoder | GraphDecoder | None = None,
) -> Tensor:
    """New tokens (B, max_tokens) after a prompt (B, T). `on_tokens` sees each (B, 1); True stops.

    A text longer than the model's block goes on from its last half block.
    """
    sampling = sampling or Sampling()
    block = model.config.block
    prompt = prompt[:, -block + 1 :] if block > 1 else prompt[:, -1:]
    decoder = decoder or make_decoder(model, prompt.shape[0], block)
    if isinstance(decoder, GraphDecoder) and _plain_greedy(sampling) and on_tokens is None:
        if prompt.shape[1] + max_tokens <= block:
            first = decoder.start(prompt).argmax(dim=-1, keepdim=True)
            return decoder.greedy(first, max_tokens)
    steps = list(_write(model, prompt, max_tokens, sampling, on_tokens, decoder))
    return torch.cat(steps, dim=1) if steps else prompt[:, :0]


def _write(
    model: Transformer,
    prompt: Tensor,
    max_tokens: int,
    sampling: Sampling,
    on_tokens: Callable[[Tensor], bool] | None,
    decoder: EagerDecoder | GraphDecoder,
) -> Iterator[Tensor]:
    generator = torch.Generator(device=prompt.device).manual_seed(sampling.seed)
    seen = None
    if sampling.repetition_penalty != 1:
        shape = (prompt.shape[0], model.vocab_size)
        seen = torch.zeros(shape, dtype=torch.bool, device=prompt.device).scatter_(1, prompt, True)
    history, block = prompt, model.config.block
    logits = decoder.start(prompt)
    for count in range(max_tokens):
        tokens = choose(logits, sampling, generator, seen)
        if seen is not None:
            seen.scatter_(1, tokens, True)
        yield tokens
        if (on_tokens is not None and on_tokens(tokens)) or count == max_tokens - 1:
            return
        history = torch.cat((history[:, -block:], tokens), dim=1)
        if decoder.position < block:
            logits = decoder.step(tokens)
        else:
            logits = decoder.start(history[:, -max(block // 2, 1) :])


def _plain_greedy(sampling: Sampling) -> bool:
    return sampling.temperature == 0 and sampling.repetition_penalty == 1


class TextStream:
    """Turns tokens into text as they come; halves of characters wait, and so does what may be a stop."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, [s for s in stop if s]
        self.tokens: list[int] = []
        self.shown = 0
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain after one more token and was not given before."""
        self.tokens.append(token)
        text = self.text.rstrip(HALF_CHARACTER)
        if self.stopped:
            return self._show(text)
        # The longest end of the text that could still grow into a stop string.
        held = max(
            (n for s in self.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0
        )
        return self._show(text[: len(text) - held])

    def finish(self) -> str:
        return self._show(self.text)

    @property
    def text(self) -> str:
        """All text so far, without a stop string and what follows it."""
        text = self.tokenizer.decode(self.tokens)
        ends = [at for s in self.stop if (at := text.find(s)) >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)]
        return text

    def _show(self, text: str) -> str:
        new, self.shown = text[self.shown :], max(self.shown, len(text))
        return new


def write_text(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    samples: int = 1,
    stop: Sequence[str] = (),
    on_text: Callable[[str], None] | None = None,
) -> list[str]:
    """`samples` continuations of a prompt; `on_text` gets the first of them piece by piece."""
    ids = tokenizer.encode(prompt) or tokenizer.encode("\n") or [0]
    device = model.embedding.weight.device
    rows = torch.tensor([ids] * samples, device=device)
    streams = [TextStream(tokenizer, stop) for _ in range(samples)]

    def on_tokens(tokens: Tensor) -> bool:
        for number, (stream, token) in enumerate(zip(streams, tokens[:, 0].tolist())):
            if not stream.stopped:
                text = stream.push(token)
                if on_text and number == 0 and text:
                    on_text(text)
        return all(stream.stopped for stream in streams)

    generate(model, rows, max_tokens=max_tokens, sampling=sampling, on_tokens=on_tokens)
    rest = streams[0].finish()
    if on_text and rest:
        on_text(rest)
    return [stream.text for stream in streams]
