"""Training speed beside a nanoGPT-style loop and Hugging Face's GPT-2, in one run, turn by turn.

    python benchmarks/trainer.py                    6 layers x 384, block 256, batch 16, on the CPU
    python benchmarks/trainer.py --device cuda      GPT-2 124M, block 1024, batch 64, bf16, compiled

Each contender makes a few steps, then the next one does, and so on for some rounds: what the machine does
meanwhile falls on all of them. A ratio is the median over the rounds of (their time / our time); above 1 we
are faster. All loops do the same work: random blocks, forward, backward, clipping to norm 1, AdamW. All models
are the same function: they begin with the same weights, and the benchmark ends if their first losses differ.
On a CPU each contender has a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tokenizers
import torch
from contenders.plain_gpt import PlainGPT
from torch import Tensor, nn

from traindoctor.lm.callbacks import Callbacks
from traindoctor.lm.config import RunConfig
from traindoctor.lm.distributed import World
from traindoctor.lm.estimate import cpu_has_bf16_units
from traindoctor.lm.export_hf import gpt2_config, gpt2_tensors
from traindoctor.lm.files import write_json
from traindoctor.lm.loop import Training
from traindoctor.lm.model import Transformer
from traindoctor.lm.sources import build

H200_BF16_FLOPS = 989e12
NAMES = OURS, PLAIN, THEIRS = ("traindoctor", "plain loop", "Hugging Face")
# How far the first losses (about ln V, 6 to 11 nats) of equal models lie apart: roundings in another order.
SAME_LOSS = {"float32": 1e-4, "bf16": 2e-2}
SHAPES = {
    "char": {"layers": 6, "heads": 6, "width": 384, "block": 256, "batch": 16, "vocab": 359},
    "gpt2": {"layers": 12, "heads": 12, "width": 768, "block": 1024, "batch": 64, "vocab": 50304},
    "tiny": {"layers": 2, "heads": 2, "width": 64, "block": 64, "batch": 4, "vocab": 359},
}


class Contender(NamedTuple):
    """One of the loops."""

    steps: Callable[[int], None]
    """makes some optimizer steps"""
    loss: Callable[[Tensor, Tensor], Tensor]
    """the model's loss of inputs and targets"""


def plain_loop(
    model: nn.Module, call: Callable[..., Tensor], tokens: np.ndarray, arguments: argparse.Namespace
) -> Contender:
    """A loop of the usual kind around `call(inputs, targets)`."""
    shape, device = arguments.sizes, arguments.device
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")
    block, batch = shape["block"], shape["batch"]

    def get_batch() -> tuple[Tensor, Tensor]:
        ix = torch.randint(len(tokens) - block, (batch,))
        x = torch.stack([torch.from_numpy(tokens[i : i + block].astype(np.int64)) for i in ix])
        y = torch.stack(
            [torch.from_numpy(tokens[i + 1 : i + 1 + block].astype(np.int64)) for i in ix]
        )
        if device == "cuda":
            x, y = (t.pin_memory().to(device, non_blocking=True) for t in (x, y))
        return x, y

    def steps(count: int) -> None:
        for _ in range(count):
            x, y = get_batch()
            with autocast(arguments):
                loss = call(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        assert math.isfinite(loss.item())

    return Contender(steps, call)


def ours(run: Path, arguments: argparse.Namespace) -> Contender:
    """The trainer's own steps: its batches, its loop, its metrics file."""
    training = Training(run, our_config(arguments), World(device=device_of(arguments)), Callbacks())
    training.build()

    def steps(count: int) -> None:
        for _ in range(count):
            training.step()
        training.readings.read()
        assert math.isfinite(training.readings.last_loss)

    return Contender(steps, training.forward)


def our_config(arguments: argparse.Namespace) -> RunConfig:
    shape = {k: v for k, v in arguments.sizes.items() if k != "vocab"}
    # As Hugging Face's GPT-2 always has them: biases. GELU is the exact one in all three.
    gpt2 = {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True}
    return build(
        {
            **shape,
            **gpt2,
            "steps": 10**6,
            "lr": 1e-3,
            "precision": arguments.precision,
            "compile": arguments.compile,
            "fused_loss": arguments.fused_loss,
        }
    )


def build_contender(
    name: str, run: Path, tokens: np.ndarray, arguments: argparse.Namespace
) -> Contender:
    """One of NAMES, with the weights that all of them begin with."""
    if name == OURS:
        return ours(run, arguments)
    shape, config = arguments.sizes, our_config(arguments)
    torch.manual_seed(config.train.seed)
    origin = Transformer(config.model, shape["vocab"])
    if name == PLAIN:
        plain = PlainGPT(shape)
        with torch.no_grad():
            for to, of in zip(plain.parameters(), origin.parameters(), strict=True):
                to.copy_(of)
        plain = plain.to(arguments.device)
        call = torch.compile(plain) if arguments.compile else plain
        return plain_loop(plain, call, tokens, arguments)
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2LMHeadModel(GPT2Config(**gpt2_config(origin), use_cache=False))
    theirs.load_state_dict(gpt2_tensors(origin), strict=False)  # the tied head is not stored twice
    theirs = theirs.to(arguments.device).train()
    called = torch.compile(theirs) if arguments.compile else theirs

    def loss(x: Tensor, y: Tensor) -> Tensor:
        # It would shift the labels itself, and lose the last of each row.
        return called(input_ids=x, labels=y, shift_labels=y).loss

    return plain_loop(theirs, loss, tokens, arguments)


def first_loss(contender: Contender, tokens: np.ndarray, arguments: argparse.Namespace) -> float:
    """The loss of the first blocks, before any step: the same for models that compute the same."""
    block, batch = (arguments.sizes[key] for key in ("block", "batch"))
    rows = torch.from_numpy(tokens[: batch * block + 1].astype(np.int64)).to(arguments.device)
    inputs, targets = rows[:-1].view(batch, block), rows[1:].view(batch, block)
    with torch.no_grad(), autocast(arguments):
        return contender.loss(inputs, targets).item()


class InThisProcess:
    """A contender that shares its process with the others: on a GPU, where their memory has to."""

    def __init__(
        self, name: str, run: Path, tokens: np.ndarray, arguments: argparse.Namespace
    ) -> None:
        self.arguments = arguments
        self.contender = build_contender(name, run, tokens, arguments)
        self.loss = first_loss(self.contender, tokens, arguments)

    def turn(self, count: int) -> float:
        """Seconds per step over `count` steps."""
        return timed(self.contender.steps, count, self.arguments)

    def close(self) -> None:
        pass


class InItsOwnProcess:
    """A contender as its user starts it: nothing that another one does to its process helps or hurts it."""

    def __init__(self, name: str, run: Path, arguments: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=serve, args=(far, name, run, arguments), daemon=True)
        self.process.start()
        far.close()
        self.loss: float = self.pipe.recv()

    def turn(self, count: int) -> float:
        self.pipe.send(count)
        return self.pipe.recv()

    def close(self) -> None:
        self.pipe.send(0)
        self.process.join()


def serve(pipe: Connection, name: str, run: Path, arguments: argparse.Namespace) -> None:
    """The other end: a turn for each number that comes, until a 0."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    here = InThisProcess(name, run, read_tokens(run), arguments)
    pipe.send(here.loss)
    while count := pipe.recv():
        pipe.send(here.turn(count))


def read_tokens(folder: Path) -> np.ndarray:
    return np.memmap(folder / "data" / "train.bin", dtype=np.uint16, mode="r")


def synthetic_run(folder: Path, vocab: int) -> None:
    """A run folder of random tokens, for a vocabulary of any size."""
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, vocab)}}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    (folder / "data").mkdir(parents=True)
    backend.save(str(folder / "tokenizer.json"))
    tokens = np.random.default_rng(0).integers(0, vocab, 2_000_000).astype(np.uint16)
    tokens.tofile(folder / "data" / "train.bin")
    tokens[:5000].tofile(folder / "data" / "val.bin")
    facts = {"dtype": "uint16", "train": len(tokens), "val": 5000, "unknown_share": 0.0}
    write_json(folder / "data" / "meta.json", facts)


def autocast(arguments: argparse.Namespace) -> contextlib.AbstractContextManager:
    if arguments.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(arguments.device, dtype=torch.bfloat16)


def device_of(arguments: argparse.Namespace) -> torch.device:
    return torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device("cpu")


def timed(steps: Callable[[int], None], count: int, arguments: argparse.Namespace) -> float:
    cuda = arguments.device == "cuda"
    if cuda:
        torch.cuda.synchronize()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    begun = clock()
    steps(count)
    if cuda:
        torch.cuda.synchronize()
    return (clock() - begun) / count


def start(
    run: Path, arguments: argparse.Namespace
) -> dict[str, InThisProcess] | dict[str, InItsOwnProcess]:
    """All contenders, ready for their turns; they must compute the same."""
    names = [n for n in NAMES if n != THEIRS or importlib.util.find_spec("transformers")]
    if arguments.device == "cuda":
        tokens = read_tokens(run)
        loops = {name: InThisProcess(name, run, tokens, arguments) for name in names}
    else:
        loops = {name: InItsOwnProcess(name, run, arguments) for name in names}
    for name, loop in loops.items():
        if abs(loop.loss - loops[OURS].loss) > SAME_LOSS[arguments.precision]:
            raise SystemExit(f"{name} has a first loss of {loop.loss}, not {loops[OURS].loss}")
    return loops


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    shape = arguments.sizes
    torch.manual_seed(0)
    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        synthetic_run(run, shape["vocab"])
        loops = start(run, arguments)
        peaks = {}
        for name, loop in loops.items():  # compile and warm up
            if arguments.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            loop.turn(arguments.warm)
            if arguments.device == "cuda":
                peaks[name] = torch.cuda.max_memory_allocated() / 1e9
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        order = list(loops)
        for turn in range(arguments.rounds):
            for name in order if turn % 2 == 0 else order[::-1]:
                seconds[name].append(loops[name].turn(arguments.steps))
        for loop in loops.values():
            loop.close()
    per_step = shape["batch"] * shape["block"]
    rows = []
    for name, times in seconds.items():
        ratios = sorted(t / o for t, o in zip(times, seconds[OURS]))
        row: dict[str, object] = {
            "loop": name,
            "ms per step": round(statistics.median(times) * 1e3, 2),
            "tokens/s": round(per_step / statistics.median(times)),
            "time / ours": round(statistics.median(ratios), 3),
            "lowest": round(ratios[0], 3),
            "highest": round(ratios[-1], 3),
        }
        if arguments.device == "cuda":
            parameters = our_config(arguments).model.num_parameters(shape["vocab"])
            attention = 12 * shape["layers"] * shape["width"] * shape["block"]
            flops = 6 * parameters + attention
            speed = per_step / statistics.median(times)
            row |= {
                "MFU": round(flops * speed / H200_BF16_FLOPS, 3),
                "peak GB": round(peaks[name], 1),
            }
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--precision", choices=["float32", "bf16"], action="append")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    parser.add_argument("--fused-loss", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps per turn")
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that others use too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    arguments.shape = arguments.shape or ("gpt2" if cuda else "char")
    arguments.compile = cuda if arguments.compile is None else arguments.compile
    arguments.steps = arguments.steps or (10 if cuda else 1)
    arguments.sizes = dict(SHAPES[arguments.shape])
    if arguments.batch:
        arguments.sizes["batch"] = arguments.batch
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    print(
        f"torch {torch.__version__}, {machine}, {torch.get_num_threads()} threads, {arguments.sizes}"
    )
    results = {}
    for precision in arguments.precision or (["bf16"] if cuda else ["float32", "bf16"]):
        if precision == "bf16" and not cuda and not cpu_has_bf16_units():
            print(
                "bf16: left out, this CPU has no bf16 units and emulates it (hundreds of times slower)"
            )
            continue
        arguments.precision = precision
        results[precision] = rows = measure(arguments)
        print(f"\n{precision}{', compiled' if arguments.compile else ''}")
        print("  ".join(f"{name:>12}" for name in rows[0]))
        for row in rows:
            print("  ".join(f"{value!s:>12}" for value in row.values()))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
