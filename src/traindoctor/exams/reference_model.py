"""Exam: are the data learnable at all? A plain model of a usual size is trained on the run's own batches.

Legend: B rows, T places, D features, V tokens, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from traindoctor.exams.base import NotPossible, exam, nothing_beside_tokens
from traindoctor.experiment.reference import HELD_OUT, LEAST_BATCHES, Batches, Reference, teach
from traindoctor.graph.alignment import looks_like_positions
from traindoctor.graph.ends import Ends, find_ends
from traindoctor.ground.modes import seed_generators

if TYPE_CHECKING:
    from traindoctor.experiment.patient import Patient
    from traindoctor.experiment.snapshot import StepLog


@exam(name="reference_model", title="A plain model on the same batches", cost=80)
def reference_model(patient: Patient) -> Mapping[str, Any]:
    """`held_out`: the reference's loss on batches it did not see, against `guessing` from target frequencies.

    The run's first batches are passed over PASSES times; the last HELD_OUT are kept apart, and rows that stand in them
    are taken from the others: what comes again in a later epoch could be known by heart.
    """
    tape = patient.first_tape
    assert tape is not None
    found = find_ends(tape)
    ends = [e for e in found if e.has_classes and e.layout is not None]
    if not ends:
        raise nothing_beside_tokens(tape, found)
    chosen = next((e for e in ends if e.causal), ends[-1])
    batches = [pair for log in patient.logs() if (pair := pair_of(log, chosen)) is not None]
    if len(batches) < LEAST_BATCHES:
        raise NotPossible(
            f"only {len(batches)} batches of the run were kept; {LEAST_BATCHES} are needed"
        )
    held = batches[-HELD_OUT:]
    train = without_rows_of(held, batches[:-HELD_OUT])
    if len(train) < LEAST_BATCHES - HELD_OUT:
        raise NotPossible("all batches that were kept hold the same rows")
    tokens = 1 + max(int(x.max()) for x, _ in batches)
    classes = max(chosen.loss.num_classes, 1 + max(int(y.max()) for _, y in batches))
    seed_generators(0)  # the random state is given back when the exam ends
    model = Reference(
        tokens, classes, causal=chosen.causal, length=max(x.shape[1] for x, _ in batches)
    )
    steps = teach(model, train, cross_entropy)
    with torch.no_grad():
        losses = torch.tensor([float(cross_entropy(model(x), y)) for x, y in held])
    return {
        "held_out": float(losses.mean()),
        "noise": float(losses.std() / math.sqrt(len(losses))),
        "guessing": guessing(train, held, classes),
        "steps": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "own_parameters": sum(leaf.value.numel() for leaf in tape.parameters.values()),
        "causal": chosen.causal,
    }


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


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Targets (B, T), -100 where they do not count; or (B,): the mean over places is the answer."""
    if targets.ndim == 1:
        return F.cross_entropy(scores.mean(1), targets)
    return F.cross_entropy(scores[:, : targets.shape[1]].flatten(0, 1), targets.flatten())


def guessing(train: Batches, held: Batches, classes: int) -> float:
    """Cross-entropy on the held-out targets of their frequencies in the others."""
    seen = torch.cat([y.flatten() for _, y in train])
    counts = torch.bincount(seen[seen >= 0], minlength=classes).float() + 0.5
    logs = (counts / counts.sum()).log()
    asked = torch.cat([y.flatten() for _, y in held])
    return float(-logs[asked[asked >= 0]].mean())


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
            laid = torch.full((rows, places), -100)
            laid[:, picked] = y.reshape(rows, len(picked))
            return x, laid
        if answers < 1 or y.numel() != rows * answers:
            return None
        if not places:
            return x, y
        return x, y.reshape(rows, answers) if axis == 1 else y.reshape(answers, rows).T.contiguous()
    return None


def picked_places(ends: Ends) -> Tensor | None:
    """The places of every row that the loss was taken over, where those are some and the same in all rows."""
    assert ends.layout is not None
    axis, rows, places = ends.layout
    if axis != 1 or not places or ends.loss.valid.numel() != rows * places:
        return None
    valid = ends.loss.valid.cpu().view(rows, places)
    same = bool((valid == valid[0]).all()) and not bool(valid[0].all())
    return valid[0].nonzero().flatten() if same else None
