"""GPT-2 124M, eager against compiled, in bfloat16 autocast: how long does `traindoctor compare` take, with how much memory?

    python benchmarks/compare_gpt2.py --device cuda          # and with a planted fault: --fault epsilon, --fault decay

Prints the answer, the seconds, and the peak of device memory against that of one side alone, in the same run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.model import Transformer, decay_groups

FAULTS = ("none", "epsilon", "decay", "scale")
SMALL = {"layers": 2, "heads": 4, "width": 64, "block": 64}
GPT2 = {"layers": 12, "heads": 12, "width": 768, "block": 1024}


def made(fault: str, *, compiled: bool) -> tuple[Any, ...]:
    device = os.environ["COMPARE_DEVICE"]
    large = device == "cuda"
    vocab = 50304 if large else 256
    torch.manual_seed(0)
    shape = GPT2 if large else SMALL
    config = ModelConfig(
        **shape, norm="layer", positions="learned", mlp="gelu-tanh", tied=True, bias=True
    )
    model = Transformer(config, vocab).to(device)
    middle = model.blocks[config.layers // 2]
    if fault == "epsilon":
        middle.mlp_norm.eps = (
            0.3  # the stream's variance is near 1: a smaller one hides in bfloat16
        )
    if fault == "scale":
        middle.attention.out.register_forward_hook(lambda _, __, out: out * 1.1)
    tokens = torch.randint(0, vocab, (4, config.block + 1), device=device)
    batches = [(tokens[:, :-1], tokens[:, 1:])]
    running = torch.compile(model) if compiled else model

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            scores = model(batch[0])
        return F.cross_entropy(scores.float().flatten(0, 1), batch[1].flatten())

    groups = decay_groups(model, 0.0 if fault == "decay" else 0.1)
    return running, batches, loss_fn, torch.optim.AdamW(groups, lr=1e-3)


def eager() -> tuple[Any, ...]:
    return made("none", compiled=False)


def other() -> tuple[Any, ...]:
    fault = os.environ["COMPARE_FAULT"]
    return made(fault, compiled=os.environ["COMPARE_COMPILED"] == "1")


def alone() -> int:
    """The peak of three steps of one side, without anything of ours."""
    model, batches, loss_fn, optimizer = eager()
    for _ in range(3):
        optimizer.zero_grad()
        loss_fn(model, batches[0]).backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--eager", action="store_true", help="B is not compiled")
    options = parser.parse_args()
    os.environ |= {
        "COMPARE_DEVICE": options.device,
        "COMPARE_FAULT": options.fault,
        "COMPARE_COMPILED": "0" if options.eager else "1",
    }
    from traindoctor.compare.table import lines
    from traindoctor.comparison import compare_sides
    from traindoctor.tracing.patient import PatientSide

    one = alone()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    here = Path(__file__)
    found = compare_sides(PatientSide(here, "eager"), PatientSide(here, "other"))
    seconds = time.perf_counter() - began
    print("\n".join(lines(found, width=100)))
    print(f"{seconds:.1f} s on {options.device}, torch {torch.__version__}")
    if one:
        peak = torch.cuda.max_memory_allocated()
        print(f"peak {peak / 1e9:.2f} GB, one side alone {one / 1e9:.2f} GB: {peak / one:.2f} x")


if __name__ == "__main__":
    sys.exit(main())
