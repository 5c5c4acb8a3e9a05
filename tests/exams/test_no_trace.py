"""Every exam of the table leaves the run as it found it, to the bit, whether it answers or refuses."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.capture.watch import Watch
from traindoctor.exams import EXAMS, load
from traindoctor.replay.patient import Patient

V, B, T, D = 16, 4, 24, 8
# Two exams need a patient that this one is not: examples one by one, a step that breaks.
REFUSES = {"batched_forward", "first_nonfinite", "accumulation"}


class Square(torch.autograd.Function):
    """So that Functions have something to be tested by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


class Model(nn.Module):
    """Next tokens, and a second answer for the whole row; dropout, a buffer, a ReLU, a hand-written Function."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(V, D), nn.Embedding(T, D)
        self.block = nn.TransformerEncoderLayer(D, 2, 2 * D, 0.1, batch_first=True, norm_first=True)
        self.head, self.kind = nn.Linear(D, V), nn.Linear(D, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, whole: bool = False) -> Tensor:
        self.calls += 1
        mask = None if whole else torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        h = self.block(self.token(x) + self.place.weight, src_mask=mask)
        return self.kind(h.mean(1)) if whole else self.head(h + 0.1 * Square.apply(h))


@pytest.fixture(scope="module", params=["next tokens", "rows"])
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Patient, nn.Module, torch.optim.Optimizer]]:
    """A run of 30 steps as traindoctor sees it: tapes, snapshots, batches; its optimizer in mid-flight."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    whole = request.param == "rows"
    watch = Watch(tmp_path_factory.mktemp("watch"), budget=1.0, rank=0)
    watch.attach()
    try:
        for _ in range(30):
            ids = torch.randint(V, (B, T + 1))
            target = ids[:, 0] % 3 if whole else ids[:, 1:].flatten()
            scores = model(ids[:, :-1], whole=whole)
            loss = F.cross_entropy(scores if whole else scores.flatten(0, 1), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()
    finally:
        watch.detach()
    yield watch.patient, model, optimizer
    watch.close("done")


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All that a run goes on from."""
    return copy.deepcopy(
        {
            "weights and buffers": model.state_dict(),
            "gradients": [p.grad for p in model.parameters()],
            "optimizer": optimizer.state_dict(),
            "modes": [m.training for m in model.modules()],
            "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
            "trainable": [p.requires_grad for p in model.parameters()],
            "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),
            "switches": (
                torch.is_grad_enabled(),
                torch.is_autocast_enabled("cpu"),
                torch.get_default_dtype(),
                torch.is_anomaly_enabled(),
            ),
        }
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor | np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", EXAMS)
def test_everything_is_given_back(name: str, watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    patient, model, optimizer = watched
    exam = load(name)
    for setting in (
        "SECONDS",
    ):  # long exams are cut short: what they leave does not hang on their length
        if hasattr(__import__(exam.perform.__module__, fromlist=["_"]), setting):
            monkeypatch.setattr(f"{exam.perform.__module__}.{setting}", 0.5)
    pointers = [(p, p.grad) for p in model.parameters()]
    before = everything(model, optimizer)
    result = exam(patient)
    after = everything(model, optimizer)
    assert result.outcome != "failed", result.reason
    assert [part for part in before if not same(before[part], after[part])] == []
    assert all(p.grad is gradient for p, gradient in pointers)
    assert torch.is_tensor(model.calls)


def test_the_patients_answer_to_all_but_the_named_exams(watched: Any) -> None:
    """Else the test above would say nothing about them."""
    patient, _, _ = watched
    if patient.first_tape.loss_sites[0].num_classes == 3:
        pytest.skip("the other patient answers to more")
    refused = {
        name
        for name in (
            "tape_gradient",
            "functions_alone",
            "dependence",
            "shift",
            "padding",
            "residual",
        )
        if load(name)(patient).outcome != "done"
    }
    assert refused <= REFUSES
