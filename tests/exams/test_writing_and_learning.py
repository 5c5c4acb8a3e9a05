"""The costly exams: one batch by heart, a reference model on the run's batches, what the model writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import traindoctor.exams.overfit_batch as overfitting
from traindoctor.exams.generation import ends_in_loop, generation
from traindoctor.exams.overfit_batch import overfit_batch
from traindoctor.exams.reference_model import reference_model
from traindoctor.exams.reference_numbers import reference_numbers
from traindoctor.replay.patient import Patient
from traindoctor.replay.snapshot import StepLog

B, T, D, V = 8, 24, 16, 12


class Model(nn.Module):
    def __init__(self, width: int = D) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(V, width), nn.Embedding(T, width)
        self.layer = nn.TransformerEncoderLayer(width, 1, 4 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, V)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((T, T), -torch.inf).triu(1)
        h = self.layer(self.token(x) + self.place(torch.arange(T)), src_mask=mask)
        return self.head(h)


def chain(step: int) -> Tensor:
    """Each token is the last one plus 1 or 2: something can be learned."""
    generator = torch.Generator().manual_seed(step)
    return torch.cumsum(torch.randint(1, 3, (B, T + 1), generator=generator), 1) % V


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :T]).flatten(0, 1), ids[:, 1:].flatten())


def test_one_batch_is_learned_by_heart(
    examine: Callable[..., Patient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overfitting, "STEPS", 12)
    monkeypatch.setattr(overfitting, "RATES", (1e-2,))
    values = overfit_batch(examine(Model(), loss, chain)).values
    assert values["end"] < 0.8 * values["start"]
    assert values["targets"] == B * T


def kept(step: int, *, apart: bool) -> StepLog:
    ids = chain(step)
    targets = ids[:, 1:]
    if apart:
        targets = torch.randint(0, V, targets.shape, generator=torch.Generator().manual_seed(step))
    data = {("tokens", 0, 0): ids[:, :T], ("tokens", 1, 0): torch.arange(T)}
    return StepLog(step, data={**data, ("loss", 0, 0): targets.reshape(-1)})


def measured(step: int, *, apart: bool) -> StepLog:
    """Signals and their mean over the first places; or the mean of another row's."""
    signals = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
    numbers = signals[:, :4].mean(1)
    return StepLog(
        step, data={("forward", 0, 0): signals, ("loss", 0, 0): numbers.roll(int(apart))}
    )


@pytest.mark.parametrize("apart", [False, True])
def test_a_plain_model_tells_whether_numbers_can_be_learned(apart: bool) -> None:
    patient = Patient(
        snapshot=SimpleNamespace(logs={n: measured(n, apart=apart) for n in range(46)})
    )
    values = reference_numbers(patient).values
    assert (values["held_out"] > 0.95) == apart
    assert not reference_numbers(Patient()).done


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_a_reference_model_tells_whether_data_can_be_learned(
    examine: Callable[..., Patient], apart: bool
) -> None:
    patient = examine(Model(width=2), loss, chain)
    patient.snapshot = SimpleNamespace(logs={k: kept(k, apart=apart) for k in range(46)})
    result = reference_model(patient)
    assert result.done, result.reason
    values = result.values
    assert values["parameters"] > 10 * values["own_parameters"]
    learns = values["held_out"] < values["guessing"] - 0.1
    assert learns is not apart


def test_without_batches_there_is_no_reference(examine: Callable[..., Patient]) -> None:
    assert reference_model(examine(Model(), loss, chain)).outcome == "refused"


def test_the_tape_writes_text(examine: Callable[..., Patient]) -> None:
    result = generation(examine(Model(), loss, chain, steps=2))
    assert result.done, result.reason
    assert result.values["tokens"] == T // 2
    assert result.values["sampled"]["entropy"] > result.values["greedy"]["entropy"] - 1.0


def test_loops_are_told_from_text() -> None:
    assert ends_in_loop([1, 2, 3, 4] + [7] * 14)
    assert ends_in_loop([1, 2, 3, 4, 5, 6] + [7, 8] * 9)
    assert not ends_in_loop(list(range(18)))
