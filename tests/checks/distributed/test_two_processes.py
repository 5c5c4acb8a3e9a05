"""Two real ranks: a model split by hand and weights averaged now and then are healthy, a lost exchange is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TWO_RANKS = """
import sys, tempfile, torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist, torch.multiprocessing as mp

class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(); dist.all_reduce(gradient)
        return gradient

class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone(); dist.all_reduce(x)
        return x
    @staticmethod
    def backward(ctx, gradient): return gradient

class Split(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)
        up, down = torch.randn(32, 16) * 0.2, torch.randn(16, 32) * 0.2
        self.up = nn.Parameter(up.chunk(2)[rank].clone())
        self.down = nn.Parameter(down.chunk(2, 1)[rank].clone())
    def forward(self, x):
        inner = F.linear(F.gelu(F.linear(Copy.apply(self.norm(x)), self.up)), self.down)
        return self.head(x + Reduce.apply(inner))

def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor); tensor /= 2

def main(rank, file, case):
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    torch.manual_seed(0)
    split = case == "split"
    model = Split(rank) if split else nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))
    truth = torch.randn(16, 10, generator=torch.Generator().manual_seed(5))
    draws = torch.Generator().manual_seed(6 if split else 6 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(60):
        x = torch.randn(32, 16, generator=draws)
        loss = F.cross_entropy(model(x), (x @ truth).argmax(1))
        optimizer.zero_grad(); loss.backward()
        if case == "lost" and step % 2 == 0: average([p.grad for p in model.parameters()])
        optimizer.step()
        if case == "local" and step % 7 == 6: average([p.data for p in model.parameters()])
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, (tempfile.mktemp(), CASE), nprocs=2)
"""


@pytest.mark.parametrize(
    ("case", "named"),
    [
        pytest.param("split", None, marks=pytest.mark.slow),
        pytest.param("local", None, marks=pytest.mark.slow),
        ("lost", "ranks-diverged"),
    ],
)
def test_replicas_are_told_from_parts_and_from_strangers(
    tmp_path: Path, case: str, named: str | None
) -> None:
    file = tmp_path / "train.py"
    file.write_text(TWO_RANKS.replace("CASE", repr(case)))
    out = tmp_path / "verdict.json"
    command = [sys.executable, "-m", "traindoctor", "run", "--out", str(tmp_path / "run")]
    command += ["--json", str(out), "--after", "0", "--quiet", str(file)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert out.exists(), done.stderr
    verdict = json.loads(out.read_text())
    assert "ranks-see-same-data" not in {one["cause"] for one in verdict["not_applicable"]}
    said = [one["cause"] for one in verdict["causes"] if one["status"] != "possible"]
    assert said == ([named] if named else [])
