"""Where tokens or numbers of the batch meet the first parameter."""

from collections.abc import Iterator

import torch
from torch import Tensor

from traindoctor.graph.origins import argument, depends_on, index_tensors, walk_back
from traindoctor.graph.sites import InputSite, SiteKind
from traindoctor.tape.operators import LOSSES, TABLES
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape


def input_sites(tape: StepTape) -> list[InputSite]:
    """Look-ups in the order of their ops; where no data is looked up, also the first numbers that meet a parameter."""
    if input_sites not in tape.memo:
        tape.memo[input_sites] = find_input_sites(tape)
    return tape.memo[input_sites]  # type: ignore[no-any-return]


def find_input_sites(tape: StepTape) -> list[InputSite]:
    sites = []
    for op in tape.ops:
        if op.kind in TABLES and op.index is not None:
            site = _table_site(tape, op)
            if site is not None:
                sites.append(site)
    if not any(site.kind == "data" for site in sites):
        sites.extend(_continuous_site(tape))
    return sites


def _table_site(tape: StepTape, op: Op) -> InputSite | None:
    picks = [] if op.kind == "embedding" else index_tensors(op)
    table = op.args[0] if picks else argument(op, 1, "weight")
    looked_up = picks[0] if picks else argument(op, 0, "input")
    if not isinstance(table, Ref) or op.index is None or not isinstance(looked_up, Ref):
        return None
    name = next((n for r, _ in walk_back(tape, table) if (n := tape.name_of(r))), None)
    if name is None and op.kind != "embedding":
        return None  # rows of an activation: no table
    size = tape.geometry[table.index].size
    if op.kind != "embedding" and (len(size) < 2 or len(picks) > 1):
        return None
    from_data = depends_on(tape, looked_up)
    if from_data & PARAMETER:
        return None
    return InputSite(
        op, op.index, name, _kind_of(op.index, bool(from_data)), looked_up, size[0] if size else 0
    )


def _kind_of(index: Tensor, from_data: bool) -> SiteKind:
    """Positions count up along the last axis; a constant says nothing; the rest is data."""
    if index.numel() == 0:
        return "constant"
    if index.dim() > 0 and index.shape[-1] > 1:
        steps = index.diff(dim=-1)
        # Padding repeats a position, so a few steps may be 0; they never jump.
        counting = ((steps == 1) | (steps == 0)).all() and (steps == 1).float().mean() > 0.5
        if bool(counting):
            return "position"
    if bool((index == index.reshape(-1)[0]).all()):
        return "constant" if index.numel() > 1 or not from_data else "data"
    return "data" if from_data else "position"


def _continuous_site(tape: StepTape) -> Iterator[InputSite]:
    for op in tape.ops:
        kinds = {ref: depends_on(tape, ref) for ref in op.inputs}
        data = [ref for ref, kind in kinds.items() if kind == DATA]
        named = [tape.name_of(ref) for ref, kind in kinds.items() if kind & PARAMETER]
        if data and named and not op.synthetic and op.kind not in LOSSES:
            yield InputSite(op, None, named[0], "continuous", data[0])
            return


def asks_for_tokens(tape: StepTape) -> bool:
    """Whether whole numbers of the batch meet anything but the tables that they are looked up in."""
    looked_up = {id(site.op) for site in input_sites(tape)}
    for op in tape.ops:
        if id(op) in looked_up:
            continue
        kinds = {ref: depends_on(tape, ref) for ref in op.inputs}
        if any(kind & PARAMETER for kind in kinds.values()):
            if any(kind == DATA and is_whole(tape, ref) for ref, kind in kinds.items()):
                return True
    return False


def is_whole(tape: StepTape, ref: Ref) -> bool:
    """A rearrangement of integers of the batch."""
    *_, (first, _) = walk_back(tape, ref)
    kept = tape.constants.get(first)
    return kept is not None and not kept.is_floating_point() and kept.dtype is not torch.bool
