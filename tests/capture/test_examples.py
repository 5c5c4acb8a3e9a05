"""Loops over single examples are kept for the exam that batches them, wherever the loop stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from traindoctor.capture.watch import Watch
from traindoctor.record import open_record

EXAMPLES = 6


class Loops(nn.Module):
    """Calls its encoder once per example, or once; `chained`: each call is given what the last one made."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.encoder, self.head, self.how = nn.Linear(5, 5), nn.Linear(5, 2), how

    def forward(self, rows: list[list[float]]) -> Tensor:
        x = torch.tensor(rows)
        if self.how == "batched":
            return self.head(self.encoder(x))
        made = [self.encoder(row[None]) for row in x]
        if self.how == "chained":
            state = made[0]
            made = [state := self.encoder(state) for _ in rows]
        return self.head(torch.cat(made))


class Places(nn.Module):
    """Looks up its places as one row, at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.head = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.place(torch.arange(5)[None]))


def test_accumulation_is_no_loop_inside_the_model(tmp_path: Path) -> None:
    model = Places()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(EXAMPLES):
                model(torch.randn(3, 5, 4)).square().mean().backward()
            optimizer.step()
    finally:
        watch.close("done")
    assert watch.faults == []
    assert open_record(tmp_path).fact("forward.inner_loop") is None


@pytest.mark.parametrize("how", ["one by one", "chained", "batched"])
def test_a_loop_inside_the_model_is_kept(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    model = Loops(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(EXAMPLES, 5).tolist()).square().mean().backward()
            optimizer.step()
    finally:
        watch.close("done")
    assert watch.faults == []
    said = open_record(tmp_path).fact("forward.inner_loop")
    if how == "one by one":
        called, calls = watch.patient.facts["examples"]
        assert (called, len(calls), said) == (model.encoder, EXAMPLES, EXAMPLES)
        assert all(args[0].shape == (1, 5) for args, _ in calls)
    else:
        assert (said, watch.patient.facts.get("examples")) == (None, None)
