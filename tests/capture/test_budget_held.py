"""The budget holds on real training, by the recorder's own clock: once the first steps' loan is out, no more is spent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from traindoctor.capture.watch import Watch
from traindoctor.record import open_record

STEPS, EARLY, PROBE = 220, 100, 24


def train(batch: int, steps: int = STEPS) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(64, 128), layer, nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(steps):
        x = torch.randint(0, 64, (batch, 64))
        loss = F.cross_entropy(model(x).flatten(0, 1), x.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def batch_for(seconds: float) -> int:
    """Rows that make a step take so long on this machine."""
    train(PROBE, 2)
    began = time.perf_counter()
    train(PROBE, 6)
    return max(1, round(PROBE * seconds / ((time.perf_counter() - began) / 6)))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("budget", "seconds"), [(0.02, 0.1), (0.005, 0.7)])
def test_the_budget_holds_on_real_training(tmp_path: Path, budget: float, seconds: float) -> None:
    """What listening alone costs is fixed, about a millisecond: half a percent is for longer steps."""
    batch = batch_for(seconds)
    watch = Watch(tmp_path, budget=budget)
    watch.attach()
    try:
        train(batch)
    finally:
        watch.close()
    record = open_record(tmp_path)
    own, took = record["self.seconds"], record["time.step"]
    late = own.values[own.steps > EARLY].sum() / took.values[took.steps > EARLY].sum()
    assert late <= budget
    assert len(record["loss.root"]) == STEPS  # the curve has no gap
    assert len(record.layers("grad.rms")) > 3  # and measuring went on
