"""The batches of the run as pairs of tokens and targets, for a plain model to learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.experiment.reference import HELD_OUT, LEAST_BATCHES, Batches, Data
from traindoctor.graph.alignment import looks_like_positions
from traindoctor.graph.ends import Ends

if TYPE_CHECKING:
    from traindoctor.experiment.patient import Patient
    from traindoctor.experiment.snapshot import StepLog


def data_of(patient: Patient, chosen: Ends) -> Data:
    batches = [pair for log in patient.logs() if (pair := pair_of(log, chosen)) is not None]
    if len(batches) < LEAST_BATCHES:
        raise ReplayError(
            f"only {len(batches)} batches of the run were kept; {LEAST_BATCHES} are needed"
        )
    held = batches[-HELD_OUT:]
    train = without_rows_of(held, batches[:-HELD_OUT])
    if len(train) < LEAST_BATCHES - HELD_OUT:
        raise ReplayError("all batches that were kept hold the same rows")
    return Data(
        train,
        held,
        tokens=1 + max(int(x.max()) for x, _ in batches),
        classes=max(chosen.loss.num_classes, 1 + max(int(y.max()) for _, y in batches)),
        length=max(x.shape[1] for x, _ in batches),
    )


def without_rows_of(held: Batches, batches: Batches) -> Batches:
    """The batches without the rows of those that are held out; rows padded to another length are the same."""
    known = {row_key(row) for x, _ in held for row in x}
    left = []
    for x, y in batches:
        keep = torch.tensor([row_key(row) not in known for row in x])
        if keep.any():
            left.append((x[keep], y[keep]))
    return left


def row_key(row: Tensor) -> bytes:
    """The row up to its constant tail."""
    inside = (row != row[-1]).nonzero()
    end = int(inside[-1]) + 2 if len(inside) else 1
    return bytes(row[:end].numpy().tobytes())


def pair_of(log: StepLog, ends: Ends) -> tuple[Tensor, Tensor] | None:
    """(tokens (B, T), targets (B, T) or (B,)) of a step, laid as on the tape; texts may be of another length."""
    assert ends.layout is not None
    axis, _, places = ends.layout
    for (kind, _, _), value in log.data.items():
        if kind != "tokens" or value.ndim != 2:
            continue
        if looks_like_positions(value.cpu().long().numpy()):
            continue
        x = value.cpu().long() if axis == 1 else value.cpu().long().T.contiguous()
        targets = next((v for (k, _, _), v in log.data.items() if k == "loss"), None)
        if targets is None or targets.is_floating_point():
            return None
        y = targets.cpu().long().reshape(-1)
        y = y.masked_fill((y < 0) | (y >= ends.loss.num_classes), -100)
        rows = x.shape[0]
        # A target for each token on the tape, or the last ones: the same number of tokens has none.
        answers = 1 if not places else places + x.shape[1] - ends.index.shape[axis]
        picked = picked_places(ends)
        if picked is not None and x.shape[1] == places and y.numel() == rows * len(picked):
            every = torch.full((rows, places), -100)
            every[:, picked] = y.reshape(rows, len(picked))
            return x, every
        if answers < 1 or y.numel() != rows * answers:
            laid = where_asked(log, value.cpu().long(), y) if places else None
            return None if laid is None else (x, laid if axis == 1 else laid.T.contiguous())
        if not places:
            return x, y
        return x, y.reshape(rows, answers) if axis == 1 else y.reshape(answers, rows).T.contiguous()
    return None


def where_asked(log: StepLog, tokens: Tensor, y: Tensor) -> Tensor | None:
    """The targets laid by the places they belong to, -100 elsewhere, where each step asks about others.

    A mask of the step with as many places as there are targets; else the one token that stands so often: the blank.
    """
    for value in log.data.values():
        if value.dtype is torch.bool and value.shape == tokens.shape:
            if int(value.sum()) == y.numel():
                return laid_in(value.cpu(), y)
    kinds, counts = tokens.unique(return_counts=True)
    blanks = kinds[counts == y.numel()]
    return laid_in(tokens == blanks, y) if len(blanks) == 1 else None


def laid_in(places: Tensor, y: Tensor) -> Tensor:
    return torch.full(places.shape, -100).masked_scatter(places, y)


def picked_places(ends: Ends) -> Tensor | None:
    """The places of every row that the loss was taken over, where those are some and the same in all rows."""
    assert ends.layout is not None
    axis, rows, places = ends.layout
    if axis != 1 or not places or ends.loss.valid.numel() != rows * places:
        return None
    valid = ends.loss.valid.cpu().view(rows, places)
    same = bool((valid == valid[0]).all()) and not bool(valid[0].all())
    return valid[0].nonzero().flatten() if same else None
