"""Exam: can the numbers that the run is asked for be told from its inputs at all? A plain model tries.

Legend: B rows, T places, D features, Q numbers that are asked for.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.exams.base import NotPossible, exam
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.reference import HELD_OUT, LEAST_BATCHES, WIDTH, Reference, teach
from traindoctor.experiment.snapshot import StepLog
from traindoctor.graph.alignment import looks_like_positions
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import argument, depends_on
from traindoctor.ground.losses import mse
from traindoctor.ground.modes import seed_generators
from traindoctor.tape.operators import LOSSES
from traindoctor.tape.ops import PARAMETER
from traindoctor.tape.tape import StepTape

# A signal of one number per place is read in pieces, so that it has at most so many.
MOST_PLACES = 64
MOST_NUMBERS = 256


@exam(
    name="reference_numbers", title="A plain model on the same numbers", cost=80, needs_tape=False
)
def reference_numbers(patient: Patient) -> Mapping[str, Any]:
    """`held_out`: mean squared error on batches it did not see, over that of guessing the mean (`guessing`: 1).

    Of the numbers' ranks: a few outliers that nobody can tell would be nearly all of the error.
    """
    call = asked_of_data(patient.first_tape)
    batches = [pair for log in patient.logs() if (pair := numbers_of(log, call)) is not None]
    shapes = {(x.shape[1:], y.shape[1:]) for x, y in batches}
    if len(batches) < LEAST_BATCHES or len(shapes) != 1:
        raise NotPossible(
            f"only {len(batches)} batches of one shape were kept; {LEAST_BATCHES} are needed"
        )
    train, held = batches[:-HELD_OUT], batches[-HELD_OUT:]
    asked = torch.cat([y for _, y in train])
    train, held = ([(x, ranks(y, asked)) for x, y in part] for part in (train, held))
    seed_generators(0)  # the random state is given back when the exam ends
    model = plain_model(train[0][0], train[0][1].shape[1], [x for x, _ in batches])
    steps = teach(model, train, error)
    with torch.no_grad():
        guess = torch.tensor([float(y.square().mean()) for _, y in held])
        errors = torch.tensor([float(error(model(x), y)) for x, y in held]) / guess.mean()
    return {
        "held_out": float(errors.mean()),
        "noise": float(errors.std() / math.sqrt(len(errors))),
        "guessing": 1.0,
        "steps": steps,
    }


def ranks(y: Tensor, among: Tensor) -> Tensor:
    """(B, Q) places of numbers among all, column by column, as even numbers with mean 0 and variance 1."""
    ordered, y = among.sort(0).values.T.contiguous(), y.T.contiguous()
    before = torch.searchsorted(ordered, y) + torch.searchsorted(ordered, y, right=True)
    return (math.sqrt(3) * (before / len(among) - 1)).T


def plain_model(x: Tensor, numbers: int, seen: list[Tensor]) -> nn.Module:
    """The reference transformer; of tokens, or of dense inputs cut into places."""
    tokens = 1 if x.is_floating_point() else 1 + max(int(one.max()) for one in seen)
    model = Reference(tokens, numbers, causal=False, length=x.shape[1])
    if x.is_floating_point():
        model.token = nn.Linear(x.shape[2], WIDTH)  # type: ignore[assignment]
    return model


def error(scores: Tensor, targets: Tensor) -> Tensor:
    """The mean over places is the answer."""
    return mse(scores.mean(1), targets)


def asked_of_data(tape: StepTape | None) -> int:
    """The number, among the step's calls of losses, of the first whose targets are numbers of the batch.

    What the model makes itself (codes, an estimate of its own) moves with its weights: nobody can be asked to tell it.
    """
    if tape is None:
        return 0
    calls = [s for s in loss_sites(tape) if s.op.kind in LOSSES]
    calls = [s for s in calls if depends_on(tape, s.logits) & PARAMETER]
    own = [depends_on(tape, argument(s.op, 1, "target")) & PARAMETER != 0 for s in calls]
    if own and all(own):
        raise NotPossible("the targets are computed by the model itself")
    return own.index(False) if own else 0


def numbers_of(log: StepLog, call: int = 0) -> tuple[Tensor, Tensor] | None:
    """(tokens (B, T) or features (B, T, D), numbers (B, Q)) of a step."""
    targets = log.data.get(("loss", call, 0))
    if targets is None or not targets.is_floating_point() or targets.ndim == 0:
        return None
    y = targets.cpu().float().reshape(len(targets), -1)
    for wanted in ("tokens", "forward"):
        for (kind, _, _), value in log.data.items():
            if kind == wanted and value.ndim >= 2 and len(value) == len(y):
                x = as_places(value.cpu())
                if x is not None and y.shape[1] <= MOST_NUMBERS:
                    return x, y
    return None


def as_places(value: Tensor) -> Tensor | None:
    if not value.is_floating_point():
        tokens = value.long()
        known = tokens.ndim == 2 and not looks_like_positions(tokens.numpy())
        return tokens if known else None
    if value.ndim == 3 and value.shape[1] <= MOST_PLACES:
        return value.float()
    flat = value.float().flatten(1)
    piece = math.ceil(flat.shape[1] / MOST_PLACES) if flat.shape[1] > MOST_PLACES else 4
    padded: Tensor = F.pad(flat, (0, -flat.shape[1] % piece))
    return padded.reshape(len(padded), -1, piece)
