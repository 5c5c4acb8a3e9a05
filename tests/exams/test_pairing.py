"""Is each prediction compared with its own target: one fault, an order on one side alone, written in many ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from patients import patient_of
from torch import Tensor, nn

from traindoctor.exams.pairing import pairing

B, T, D, C = 6, 5, 8, 3

torch.manual_seed(0)
ROWS, CLASSES = torch.randn(B, D), torch.tensor([0, 1, 2, 0, 1, 2])
SERIES, PLACES = torch.randn(B, T, D), torch.randint(C, (B, T))
NUMBERS, PHONES = torch.randn(B, C), torch.tensor([[1, 2], [2, 1], [1, 1], [2, 2], [1, 2], [2, 1]])
WHOLE, LABELS = torch.randn(50, D), torch.randint(C, (50,))
Loss = Callable[[nn.Module], Tensor]


def alignments(logits: Tensor) -> Tensor:
    lengths = torch.full((B,), T), torch.full((B,), 2)
    return F.ctc_loss(logits.log_softmax(-1), PHONES, *lengths)


def by_hand(logits: Tensor, targets: Tensor) -> Tensor:
    return -(logits.log_softmax(-1) * F.one_hot(targets, C)).sum() / B


def cut_out(model: nn.Module, *, mixed: bool) -> Tensor:
    """The step draws its batch from all of the data."""
    chosen = torch.randperm(50)[:B]
    order = torch.arange(B).flip(0) if mixed else torch.arange(B)
    targets = WHOLE[chosen, :C] + LABELS[chosen][:, None]
    return F.mse_loss(model(WHOLE[chosen]), targets[order])


WRONG: dict[str, Loss] = {
    "rolled labels": lambda m: F.cross_entropy(m(ROWS), CLASSES.roll(1)),
    "flipped numbers": lambda m: F.mse_loss(m(ROWS), NUMBERS.flip(0)),
    "flattened time first": lambda m: F.cross_entropy(
        m(SERIES.transpose(0, 1)).flatten(0, 1), PLACES.flatten()
    ),
    "repeat beside repeat_interleave": lambda m: F.cross_entropy(
        m(ROWS.repeat(2, 1)), CLASSES.repeat_interleave(2)
    ),
    "a view for a transpose": lambda m: alignments(m(SERIES).view(T, B, C)),
    "a loss by hand": lambda m: by_hand(m(ROWS), CLASSES.roll(2)),
    "an einsum": lambda m: (
        (torch.einsum("bd,cd->bc", ROWS, m[0].weight[:C]) - NUMBERS.roll(2, 0)).square().sum()
    ),
}


def preferred(model: nn.Module, series: Tensor, places: Tensor) -> Tensor:
    """The first half of the rows is held against the second, place by place, where a mask counts them."""
    picked = model(series).log_softmax(-1).gather(-1, places[..., None])[..., 0]
    better, worse = (picked * (torch.arange(T) > 1)).sum(1).chunk(2)
    return -F.logsigmoid(better - worse).mean()


RIGHT: dict[str, Loss] = {
    "labels": lambda m: F.cross_entropy(m(ROWS), CLASSES),
    "numbers": lambda m: F.mse_loss(m(ROWS), NUMBERS),
    "both time first": lambda m: F.cross_entropy(
        m(SERIES.transpose(0, 1)).flatten(0, 1), PLACES.T.flatten()
    ),
    "both repeated": lambda m: F.cross_entropy(m(ROWS.repeat(2, 1)), CLASSES.repeat(2)),
    "alignments": lambda m: alignments(m(SERIES).transpose(0, 1)),
    "a loss by hand": lambda m: by_hand(m(ROWS), CLASSES),
    "both in another order": lambda m: F.cross_entropy(m(ROWS.flip(0)), CLASSES.flip(0)),
}
# Several examples in one prediction, or none: nothing can be said.
UNTOLD: dict[str, Loss] = {
    "all with all": lambda m: F.cross_entropy(m(ROWS) @ NUMBERS.T, torch.arange(B)),
    "statistics of the batch": lambda m: F.cross_entropy(
        F.batch_norm(m(ROWS), None, None, training=True), CLASSES.roll(1)
    ),
    "every place sees all": lambda m: F.cross_entropy(m(ROWS).cumsum(0), CLASSES.roll(1)),
}


def seen(loss: Loss) -> list[dict[str, int]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(D, 16), nn.GELU(), nn.Linear(16, C))
    result = pairing(patient_of(model, lambda: loss(model)))
    assert result.outcome != "failed", result.reason
    losses: list[dict[str, int]] = result.values.get("losses", [])
    return losses


@pytest.mark.parametrize("name", WRONG)
def test_targets_of_others_are_seen(name: str) -> None:
    (loss,) = seen(WRONG[name])
    assert loss["told"] >= 3
    assert loss["strange"] >= 2
    assert loss["offsets"] > 1


@pytest.mark.parametrize("name", RIGHT)
def test_own_targets_are_seen(name: str) -> None:
    (loss,) = seen(RIGHT[name])
    assert loss["told"] >= 3
    assert loss["strange"] == 0


@pytest.mark.parametrize("rows", [6, 14])
def test_pairs_that_are_compared_are_not_accused(rows: int) -> None:
    """A target counts at its own place and at its partner's: in few rows a partner is asked, too, and nothing is told."""
    torch.manual_seed(0)
    series, places = torch.randn(rows, T, D), torch.randint(C, (rows, T))
    (loss,) = seen(lambda m: preferred(m, series, places))
    assert (loss["told"], loss.get("strange", 0)) == ((0, 0) if rows == 6 else (4, 0))


@pytest.mark.parametrize("name", UNTOLD)
def test_where_examples_meet_nothing_is_told(name: str) -> None:
    assert all(loss["told"] == 0 for loss in seen(UNTOLD[name]))


def test_the_next_row_is_at_one_distance() -> None:
    (loss,) = seen(lambda m: F.mse_loss(m(ROWS)[:-1], NUMBERS[1:]))
    assert loss["strange"] == loss["told"]
    assert loss["offsets"] == 1


def test_a_batch_that_the_step_cuts_out_of_a_whole() -> None:
    (right,), (wrong,) = (seen(lambda m, w=w: cut_out(m, mixed=w)) for w in (False, True))
    assert (right["told"] >= 3, right["strange"]) == (True, 0)
    assert wrong["strange"] >= 2
