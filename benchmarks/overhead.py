"""What watching costs: watched and bare blocks of steps in turn, in one process, and by our own clock.

    python benchmarks/overhead.py                      # 4 x 4 x 128 characters, CPU, one thread
    python benchmarks/overhead.py --layers 6 --heads 6 --width 384
    python benchmarks/overhead.py --device cuda --preset gpt2 --compile
    python benchmarks/overhead.py --peers              # detect_anomaly, wandb.watch offline, trainscope beside it
                                                       # (pip install wandb trainscope)

On a busy machine the difference of the two arms cannot resolve 2 %: then the share by our own clock (wall time
inside our code) is the figure, and the difference a coarse guard.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from traindoctor.capture.hub import hub
from traindoctor.capture.watch import Watch

PEERS_BLOCK, PEERS_ROUNDS = 20, 5


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(self.before(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(nn.Module):
    def __init__(self, vocab: int, width: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.token(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Training:
    """Calling it makes one optimizer step, as a script would write it."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.options = options
        self.device = torch.device(options.device)
        sizes = (options.vocab, options.width, options.layers, options.heads, options.length)
        self.model = GPT(*sizes).to(self.device)
        self.called = torch.compile(self.model) if options.compile else self.model
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 3e-4, fused=on_gpu or None)
        self.data = torch.randint(0, options.vocab, (200_000,))
        self.count = 0
        self.between: Callable[[torch.Tensor], object] | None = None
        """What a peer wants to be called with between the backward pass and the step: the loss."""

    def __call__(self) -> None:
        length, kind = self.options.length, self.device.type
        at = torch.randint(0, len(self.data) - length - 1, (self.options.batch,))
        x = torch.stack([self.data[i : i + length] for i in at]).to(self.device, non_blocking=True)
        y = torch.stack([self.data[i + 1 : i + 1 + length] for i in at]).to(
            self.device, non_blocking=True
        )
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            loss = F.cross_entropy(self.called(x).flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if self.between is not None:
            self.between(loss)
        self.optimizer.step()
        self.count += 1
        if self.count % 50 == 0:
            loss.item()


@contextmanager
def paused(watch: Watch) -> Iterator[None]:
    """The taps stay in torch but hear nothing: what remains is a test of one attribute per call."""
    sink, hub.sink = hub.sink, None
    try:
        yield
    finally:
        hub.sink = sink


def parts_of(watch: Watch) -> Counter[str]:
    """From now on: seconds that each probe takes of the script's thread."""
    seconds: Counter[str] = Counter()
    guarded = watch.panel._guarded

    def timed_part(probe: Any, *args: Any, **kwargs: Any) -> None:
        began = time.perf_counter()
        guarded(probe, *args, **kwargs)
        seconds[probe.name] += time.perf_counter() - began

    watch.panel._guarded = timed_part  # type: ignore[method-assign]
    return seconds


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    step = Training(options)
    folder = Path(tempfile.mkdtemp())
    watch = Watch(folder, budget=options.budget / 100)
    watch.attach()
    for _ in range(options.warm):
        step()
    own = 0.0
    parts = parts_of(watch)
    arms: dict[str, list[float]] = {"bare": [], "watched": []}
    draw = random.Random(0)
    for _ in range(options.rounds):
        order = ["bare", "watched"]
        draw.shuffle(order)
        for arm in order:
            if arm == "bare":
                watch._step_began = time.perf_counter()
                with paused(watch):
                    arms[arm].append(timed(step, options))
            else:
                watch._step_began = time.perf_counter()
                spent = watch.governor.spent
                arms[arm].append(timed(step, options))
                own += watch.governor.spent - spent
    pairs = [w / b - 1 for w, b in zip(arms["watched"], arms["bare"])]
    quartiles = statistics.quantiles(pairs, n=4)
    own /= options.block * sum(arms["bare"])
    result = {
        "model": f"{options.layers}x{options.heads}x{options.width}",
        "device": options.device,
        "budget_percent": options.budget,
        "step_ms": 1e3 * statistics.median(arms["bare"]),
        "own_clock_percent": 100 * own,
        "attentive_every": watch.attention.stride,
        "heard_every": watch.attention.pulse,
        "difference_percent": 100 * statistics.median(pairs),
        "quartiles_percent": [100 * quartiles[0], 100 * quartiles[2]],
        "steps": watch.step,
        "sampled": {name: part.calls for name, part in watch.governor.parts.items()},
        "milliseconds_by_part": {name: round(1e3 * s, 2) for name, s in parts.most_common(12)},
        "faults": watch.faults,
    }
    watch.close(0)
    if options.peers:
        result["peers"] = peers(step, options)
    print(json.dumps(result, indent=2))


def timed(step: Training, options: argparse.Namespace) -> float:
    began = clock(options.device)
    for _ in range(options.block):
        step()
    return (clock(options.device) - began) / options.block


def peers(step: Training, options: argparse.Namespace) -> dict[str, float | str]:
    """Other tools on the same loop, each against bare blocks in turn, in percent."""
    tools = {"detect_anomaly": detect_anomaly, "wandb.watch": wandb_watch, "trainscope": trainscope}
    # What a tool does at every tenth step only must be in every block.
    options = argparse.Namespace(**{**vars(options), "block": PEERS_BLOCK, "rounds": PEERS_ROUNDS})
    found: dict[str, float | str] = {}
    for name, tool in tools.items():
        pairs = []
        try:
            for _ in range(options.rounds):
                bare = timed(step, options)
                with tool(step):
                    step()  # the first step of a tool that was just switched on is not its price
                    pairs.append(timed(step, options) / bare - 1)
            found[name] = 100 * statistics.median(pairs)
        except ImportError:
            found[name] = "not installed"
    return found


@contextmanager
def detect_anomaly(step: Training) -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextmanager
def wandb_watch(step: Training) -> Iterator[None]:
    """Offline, gradients and parameters every tenth step."""
    import wandb

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), project="overhead")
    wandb.watch(step.model, log="all", log_freq=10)
    try:
        step.between = lambda loss: wandb.log({"loss": loss.detach()})
        yield
    finally:
        step.between = None
        wandb.unwatch(step.model)
        run.finish()


@contextmanager
def trainscope(step: Training) -> Iterator[None]:
    """As its README attaches it."""
    from trainscope import TrainScope
    from trainscope.core.config import TrainScopeConfig

    config = TrainScopeConfig(run_dir=tempfile.mkdtemp())
    scope = TrainScope(step.model, step.optimizer, config=config).attach()
    try:
        step.between = lambda loss: scope.step(loss.item(), batch_index=step.count)
        yield
    finally:
        step.between = None
        scope.detach()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=65)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--budget", type=float, default=2.0, help="percent")
    parser.add_argument("--warm", type=int, default=130, help="steps before the clock runs")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block", type=int, default=4, help="steps of one arm in a row")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument(
        "--preset", choices=["gpt2"], help="124M: 12 x 12 x 768, 1024 tokens, 50304 words"
    )
    options = parser.parse_args()
    if options.preset == "gpt2":
        options.layers, options.heads, options.width = 12, 12, 768
        options.vocab, options.length = 50304, 1024
    return options


if __name__ == "__main__":
    main()
