"""Training speed beside a nanoGPT-style loop and Hugging Face's GPT-2, in one run, turn by turn.

    python benchmarks/trainer.py                    6 layers x 384, block 256, batch 16, on the CPU
    python benchmarks/trainer.py --device cuda      GPT-2 124M, block 1024, batch 64, bf16, compiled

Each contender makes a few steps, then the next one does, and so on for some rounds: what the machine does
meanwhile falls on all of them. A ratio is the median over the rounds of (their time / our time); above 1 we
are faster. All loops do the same work: random blocks, forward, backward, clipping to norm 1, AdamW.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.lm.callbacks import Callbacks
from traindoctor.lm.config import RunConfig
from traindoctor.lm.distributed import World
from traindoctor.lm.estimate import cpu_has_bf16_units
from traindoctor.lm.files import write_json
from traindoctor.lm.loop import Training
from traindoctor.lm.sources import build

H200_BF16_FLOPS = 989e12
# Time of this process alone instead of the wall clock's.
CPU_TIME = False
SHAPES = {
    "char": {"layers": 6, "heads": 6, "width": 384, "block": 256, "batch": 16, "vocab": 359},
    "gpt2": {"layers": 12, "heads": 12, "width": 768, "block": 1024, "batch": 64, "vocab": 50304},
    "tiny": {"layers": 2, "heads": 2, "width": 64, "block": 64, "batch": 4, "vocab": 359},
}


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width, bias=False)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.ln_2 = nn.LayerNorm(width, bias=False)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.gelu = nn.GELU()
        self.c_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.c_out(self.gelu(self.c_fc(self.ln_2(x))))


class PlainGPT(nn.Module):
    """The same model, written as such loops write it."""

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        width = shape["width"]
        self.wte = nn.Embedding(shape["vocab"], width)
        self.wpe = nn.Embedding(shape["block"], width)
        self.h = nn.ModuleList(PlainBlock(width, shape["heads"]) for _ in range(shape["layers"]))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, shape["vocab"], bias=False)
        self.lm_head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def plain_loop(
    model: nn.Module, call: Callable[..., Tensor], tokens: np.ndarray, arguments: argparse.Namespace
) -> Callable[[int], None]:
    """A loop of the usual kind around `call(inputs, targets)`."""
    shape, device = SHAPES[arguments.shape], arguments.device
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

    return steps


def ours(run: Path, arguments: argparse.Namespace) -> Callable[[int], None]:
    """The trainer's own steps: its batches, its loop, its metrics file."""
    training = Training(run, our_config(arguments), World(device=device_of(arguments)), Callbacks())
    training.build()

    def steps(count: int) -> None:
        for _ in range(count):
            training.step()
        training.read_losses()
        assert math.isfinite(training.last_loss)

    return steps


def our_config(arguments: argparse.Namespace) -> RunConfig:
    shape = {k: v for k, v in SHAPES[arguments.shape].items() if k != "vocab"}
    gpt2 = {"norm": "layer", "positions": "learned", "mlp": "gelu"}
    return build(
        {
            **shape,
            **gpt2,
            "steps": 10**6,
            "lr": 1e-3,
            "precision": arguments.precision,
            "compile": arguments.compile,
        }
    )


def contenders(
    run: Path, tokens: np.ndarray, arguments: argparse.Namespace
) -> dict[str, Callable[[int], None]]:
    shape = SHAPES[arguments.shape]
    found = {"traindoctor": ours(run, arguments)}
    plain = PlainGPT(shape).to(arguments.device)
    found["plain loop"] = plain_loop(
        plain, torch.compile(plain) if arguments.compile else plain, tokens, arguments
    )
    with contextlib.suppress(ImportError):
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=shape["vocab"],
            n_positions=shape["block"],
            n_embd=shape["width"],
            n_layer=shape["layers"],
            n_head=shape["heads"],
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            use_cache=False,
        )
        theirs = GPT2LMHeadModel(config).to(arguments.device).train()
        called = torch.compile(theirs) if arguments.compile else theirs
        # The model shifts labels itself; the targets of all loops are the inputs one token on.
        found["Hugging Face"] = plain_loop(
            theirs, lambda x, y: called(input_ids=x, labels=x).loss, tokens, arguments
        )
    return found


def synthetic_run(folder: Path, vocab: int) -> np.ndarray:
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
    return np.memmap(folder / "data" / "train.bin", dtype=np.uint16, mode="r")


def autocast(arguments: argparse.Namespace) -> contextlib.AbstractContextManager:
    if arguments.precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(arguments.device, dtype=torch.bfloat16)


def device_of(arguments: argparse.Namespace) -> torch.device:
    return torch.device(arguments.device, 0) if arguments.device == "cuda" else torch.device("cpu")


def timed(steps: Callable[[int], None], count: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.process_time if CPU_TIME else time.perf_counter
    begun = clock()
    steps(count)
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - begun) / count


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    shape = SHAPES[arguments.shape]
    torch.manual_seed(0)
    if arguments.device == "cuda":
        torch.set_float32_matmul_precision("high")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        tokens = synthetic_run(run, shape["vocab"])
        loops = contenders(run, tokens, arguments)
        peaks = {}
        for name, steps in loops.items():  # compile and warm up
            if arguments.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            steps(arguments.warm)
            if arguments.device == "cuda":
                peaks[name] = torch.cuda.max_memory_allocated() / 1e9
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        order = list(loops)
        for turn in range(arguments.rounds):
            for name in order if turn % 2 == 0 else order[::-1]:
                seconds[name].append(timed(loops[name], arguments.steps, arguments.device))
    per_step = shape["batch"] * shape["block"]
    rows = []
    for name, times in seconds.items():
        ratios = sorted(t / o for t, o in zip(times, seconds["traindoctor"]))
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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps per turn")
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="for a machine that others use too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    global CPU_TIME
    CPU_TIME = arguments.cpu_time
    cuda = arguments.device == "cuda"
    arguments.shape = arguments.shape or ("gpt2" if cuda else "char")
    arguments.compile = cuda if arguments.compile is None else arguments.compile
    arguments.steps = arguments.steps or (10 if cuda else 1)
    if arguments.batch:
        SHAPES[arguments.shape]["batch"] = arguments.batch
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU"
    print(
        f"torch {torch.__version__}, {machine}, {torch.get_num_threads()} threads, {SHAPES[arguments.shape]}"
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
