"""Losses over picked places: `logits[mask]`, `logits.split(128)`. Which place of the batch is each row of?

Legend: B rows, T places, N picked ones. The picking op is run again on numbers of places instead of activations:
whatever way it picks, its result says which were picked.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from traindoctor.errors import ReplayError
from traindoctor.graph.sites import LossSite
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import PICKING_PLACES
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

# A target that does not count.
NONE = -100


def unpicked(tape: StepTape, structure: Structure, loss: LossSite, places: int) -> LossSite | None:
    """The same loss, laid over all `places` (B*T) of the batch: those that were not picked do not count.

    Its scores are read before the pick: class scores, or the activations that a head makes scores of.
    """
    N = len(loss.targets)
    if loss.class_dim is None or loss.targets.ndim != 1 or not 0 < N < places:
        return None
    for out, op in structure.up(loss.logits):
        if op.kind in PICKING_PLACES and _picks(structure, op, out, N, places):
            rows = _rows(tape, op, out, N, places)
            return None if rows is None else _laid(loss, structure, op, rows, places)
    return None


def in_one_piece(sites: Sequence[LossSite]) -> LossSite:
    """Parts of one loss, each laid over all places: a loss that was taken piece by piece to save memory."""
    targets, valid = sites[0].targets.clone(), sites[0].valid.clone()
    for site in sites[1:]:
        targets[site.valid], valid[site.valid] = site.targets[site.valid], True
    return replace(sites[0], targets=targets, valid=valid)


def _picks(structure: Structure, op: Op, out: Ref, N: int, places: int) -> bool:
    if not op.inputs:
        return False
    source, made = structure.shape(op.inputs[0]), structure.shape(out)
    if len(source) < 2 or len(made) < 2 or source[-1] != made[-1]:
        return False
    return math.prod(source[:-1]) == places and math.prod(made[:-1]) == N


def _rows(tape: StepTape, op: Op, out: Ref, N: int, places: int) -> torch.Tensor | None:
    """(N,) the number of the place that each picked row is of."""
    source = op.inputs[0]
    size = tape.geometry[source.index].size
    numbers = torch.arange(places, dtype=torch.float64).reshape(*size[:-1], 1).expand(size)
    try:
        # On the device and in the dtype that a float64 replay has at this place.
        like = replay(tape, dtype=torch.float64, want=[source])[source]
        numbers = numbers.to(like).contiguous()
        replayed = replay(tape, dtype=torch.float64, substitute={source: numbers}, want=[out])
    except ReplayError:
        return None
    picked = replayed[out].detach().reshape(N, -1)[:, 0].round().long().cpu()
    known = bool((picked >= 0).all() and (picked < places).all())
    return picked if known and len(picked.unique()) == N else None


def _laid(
    loss: LossSite, structure: Structure, op: Op, rows: torch.Tensor, places: int
) -> LossSite:
    source = op.inputs[0]
    targets = torch.full((places,), NONE, dtype=loss.targets.dtype)
    valid = torch.zeros(places, dtype=torch.bool)
    targets[rows], valid[rows] = loss.targets.cpu(), loss.valid.cpu()
    return replace(
        loss,
        logits=source,
        targets=targets,
        valid=valid,
        class_dim=len(structure.shape(source)) - 1,
    )
