"""The costly exams: one batch by heart, a reference model on the run's batches, what the model writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from chains import B, Model, T, chain, kept, loss, measured
from planted import acting, blanks
from torch import Tensor, nn

import traindoctor.exams.overfit_batch as overfitting
from traindoctor.exams.batched_forward import batched_forward
from traindoctor.exams.generation import generation, goes_in_circles
from traindoctor.exams.overfit_batch import overfit_batch
from traindoctor.exams.reference_model import reference_model
from traindoctor.exams.reference_numbers import reference_numbers
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.plain_batches import pair_of, without_rows_of
from traindoctor.experiment.snapshot import StepLog
from traindoctor.graph.ends import find_ends


def test_one_batch_is_learned_by_heart(
    examine: Callable[..., Patient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overfitting, "STEPS", 12)
    monkeypatch.setattr(overfitting, "RATES", (1e-2,))
    values = overfit_batch(examine(Model(), loss, chain)).values
    assert values["end"] < 0.8 * values["start"]
    assert values["targets"] == B * T


@pytest.mark.parametrize("apart", [False, True])
def test_a_plain_model_tells_whether_numbers_can_be_learned(apart: bool) -> None:
    logs = {step: measured(step, apart=apart) for step in range(46)}
    values = reference_numbers(Patient(snapshot=SimpleNamespace(logs=logs))).values
    assert (values["held_out"] > 0.95) == apart
    assert not reference_numbers(Patient()).done


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("size", [40.0, 4000.0])
def test_outliers_that_nobody_can_tell_do_not_hide_that_the_others_can_be_learned(
    apart: bool, size: float
) -> None:
    def spoiled(step: int) -> StepLog:
        log = measured(step, apart=apart)
        numbers = log.data[("loss", 0, 0)]
        generator = torch.Generator().manual_seed(step)
        hit = torch.rand(len(numbers), generator=generator) < 0.05
        noise = size * torch.randn(len(numbers), generator=generator)
        log.data[("loss", 0, 0)] = torch.where(hit, noise, numbers)
        return log

    logs = {step: spoiled(step) for step in range(46)}
    values = reference_numbers(Patient(snapshot=SimpleNamespace(logs=logs))).values
    assert (values["held_out"] > 0.95) == apart


@pytest.mark.parametrize("asked", ["codes", "codes, then numbers"])
def test_numbers_of_the_models_own_making_are_nobodys_to_tell(
    examine: Callable[..., Patient], asked: str
) -> None:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        signals, numbers = batch
        made = model(signals)[:, 0]
        error = F.mse_loss(made, made.detach().round())
        return error if asked == "codes" else error + F.mse_loss(made, numbers)

    def codes_first(number: int) -> StepLog:
        log = measured(number, apart=False)
        log.data[("loss", 1, 0)] = log.data[("loss", 0, 0)]
        log.data[("loss", 0, 0)] = torch.randn(32, generator=torch.Generator().manual_seed(number))
        return log

    patient = examine(nn.Linear(12, 1), step, lambda _: (torch.randn(32, 12), torch.randn(32)))
    patient.snapshot = SimpleNamespace(logs={number: codes_first(number) for number in range(46)})
    result = reference_numbers(patient)
    if asked == "codes":
        assert "computed by the model" in result.reason
    else:
        assert result.values["held_out"] < 0.95


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


def test_rows_that_are_held_out_are_taken_from_the_others() -> None:
    rows = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9]])
    held = [(rows[1:2, :3], torch.tensor([1]))]  # padded to another length
    ((x, y),) = without_rows_of(held, [(rows, torch.arange(3)), (rows[1:2], torch.tensor([1]))])
    assert x.tolist() == rows[[0, 2]].tolist()
    assert y.tolist() == [0, 2]


@pytest.mark.parametrize("named", [False, True])
def test_targets_of_blanks_are_laid_by_the_places_they_belong_to(named: bool) -> None:
    patient = blanks(shuffled=False, named=named)
    data = patient.snapshot.logs[3].data
    ids, y = data["tokens", 0, 0], data["loss", 0, 0]
    (ends,) = find_ends(patient.first_tape)
    laid = pair_of(patient.snapshot.logs[3], ends)
    assert laid is not None
    assert laid[0].equal(ids)
    assert laid[1][ids == 32].equal(y)
    assert bool((laid[1][ids != 32] == -100).all())


def test_targets_that_fit_no_place_are_not_laid() -> None:
    patient = blanks(shuffled=False)
    log, (ends,) = patient.snapshot.logs[3], find_ends(patient.first_tape)
    log.data["loss", 0, 0] = log.data["loss", 0, 0][1:]
    assert pair_of(log, ends) is None


def test_without_batches_there_is_no_reference(examine: Callable[..., Patient]) -> None:
    assert reference_model(examine(Model(), loss, chain)).outcome == "refused"


def test_the_tape_writes_text(examine: Callable[..., Patient]) -> None:
    result = generation(examine(Model(), loss, chain, steps=2))
    assert result.done, result.reason
    assert result.values["tokens"] == T // 2
    assert result.values["sampled"]["entropy"] > result.values["greedy"]["entropy"] - 1.0


def test_loops_are_told_from_text() -> None:
    assert goes_in_circles([1, 2, 3, 4] + [7] * 14)
    assert goes_in_circles([1, 2, 3, 4, 5, 6] + [7, 8] * 9)
    assert not goes_in_circles(list(range(18)))


@pytest.mark.parametrize(("how", "together"), [("sampled", False), ("numbers", False), ("", True)])
def test_what_an_environment_gives_next_is_no_batch(how: str, together: bool) -> None:
    """A loop over examples may drop out, and read its loss and its hits."""
    result = batched_forward(acting(how))
    assert result.done is together
    assert together or "sampled" in result.reason
