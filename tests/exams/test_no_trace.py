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
from traindoctor.experiment.patient import Patient

V, B, T, D = 16, 4, 24, 8
# What each patient cannot be asked; together they answer to all but two: one needs a run that breaks, one weights in half precision.
OF_NUMBERS = {"reference_numbers", "numbers_seen"}
OF_TOKENS = set(
    "dependence positions place_codes softmax_axis attention_scores input_dependence residual dead_units normalisation "
    "padding reference_model order_matters generation functions_alone printed_loss experiment_clip".split()
)
OF_ATTENTION = {"softmax_axis", "attention_scores", "residual", "dead_units"}
ONE_PASS = {"accumulation", "batched_forward", "experiment_loss_scale"}
REFUSES = {
    "next tokens": {"positions", "order_matters", "rows_apart", "pairing"} | ONE_PASS | OF_NUMBERS,
    "rows": {"functions_alone", "padding", "generation", "rows_apart"} | ONE_PASS | OF_NUMBERS,
    "one by one": {"positions", "order_matters", "place_codes", "input_dependence", "rows_apart"}
    | {"pairing", "example_order"}
    | OF_NUMBERS,
    "numbers": OF_TOKENS | ONE_PASS | {"rows_apart", "pairing", "example_order"},
    "patches": (OF_TOKENS | ONE_PASS) - OF_ATTENTION,
}
OF_OTHER_RUNS = {"first_nonfinite", "experiment_precision"}


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
        if x.is_floating_point():
            return self.kind(self.block(x.unflatten(1, (3, D)))[:, -1] if whole else x)[:, 0]
        mask = None if whole else torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        h = self.block(self.token(x) + self.place.weight, src_mask=mask)
        return self.kind(h.mean(1)) if whole else self.head(h + 0.1 * Square.apply(h))


@pytest.fixture(scope="module", params=REFUSES)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Patient, nn.Module, torch.optim.Optimizer, set[str]]]:
    """A run of 30 steps as traindoctor sees it: tapes, snapshots, batches; its optimizer in mid-flight."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    whole = request.param == "rows"
    watch = Watch(tmp_path_factory.mktemp("watch"), budget=1.0, rank=0)
    watch.attach()
    try:
        for _ in range(30):
            optimizer.zero_grad()
            if request.param in ("numbers", "patches"):
                patches = request.param == "patches"
                signals = torch.randn(4 * B, 3 * D if patches else D)
                F.mse_loss(model(signals, whole=patches), signals[:, 3]).backward()
                optimizer.step()
                continue
            parts = torch.randint(V, (B, T + 1)).split(1 if request.param == "one by one" else B)
            for ids in parts:
                target = ids[:, 0] % 3 if whole else ids[:, 1:].flatten()
                scores = model(ids[:, :-1], whole=whole)
                loss = F.cross_entropy(scores if whole else scores.flatten(0, 1), target)
                (loss / len(parts)).backward()
                loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    finally:
        watch.detach()
    yield watch.patient, model, optimizer, REFUSES[request.param] | OF_OTHER_RUNS
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
    patient, model, optimizer, refuses = watched
    exam = load(name)
    # Long exams are cut short: what they leave does not depend on their length.
    monkeypatch.setattr(f"{exam.perform.__module__}.SECONDS", 0.3, raising=False)
    pointers = [(p, p.grad) for p in model.parameters()]
    before = everything(model, optimizer)
    result = exam(patient)
    after = everything(model, optimizer)
    assert result.done is (name not in refuses), result.reason
    assert result.outcome != "failed", result.reason
    assert [part for part in before if not same(before[part], after[part])] == []
    assert all(p.grad is gradient for p, gradient in pointers)
