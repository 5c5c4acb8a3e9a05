"""Exam: which outputs move when which tokens change. Leaks, mixed rows, blindness, the own token's share.

Tokens of the second half of one row are replaced at the embedding call and the step is run again; the scores
that enter the loss are compared. A place that may not move and does not gives exactly 0.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.moved_weights import stirred
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.ends import (
    ROUNDING,
    Ends,
    changed,
    chosen_row,
    find_ends,
    movement,
    twins,
)
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import distance_from_step, require_faithful
from traindoctor.tape.operators import PASSING_ON
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

# How far weights are moved, as a share of their size, where nothing passes with those of the first step.
STIRRED = 0.5
# Losses, each with a look-up that it depends on, that are tried.
MOST_PAIRS = 4


@exam_of_tape(name="dependence", title="Which outputs move when a token changes", cost=6)
def dependence(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`pairs`: per loss and look-up the largest movement of scores, over their spread, by region."""
    structure = Structure(tape)
    found = find_ends(tape, structure)
    ends = [e for e in found if usable(e)]
    if not ends:
        raise nothing_beside_tokens(tape, found)
    require_faithful(tape)
    # Where the answers stand in the input, first: of many inputs not all can be tried.
    ends.sort(key=lambda one: one.alignment is None)
    pairs, untold = [], None
    for one in ends[:MOST_PAIRS]:
        try:
            pairs.append(examine(tape, structure, one))
        except ReplayError as error:
            untold = error
    if untold is not None and not pairs:
        raise untold
    return {
        "pairs": pairs,
        "faithful": distance_from_step(tape),
        "attentions": len(structure.attentions),
    }


def usable(ends: Ends) -> bool:
    return ends.index.ndim == 2 and ends.layout is not None and not ends.contrastive


def told_apart(tape: StepTape, structure: Structure, ends: Ends) -> bool:
    """What is added to the look-up is the same for all rows of the index, and another for each of their places."""
    looked_up = ends.tokens.op.outputs[0]
    assert looked_up is not None
    shape, given = structure.shape(looked_up), [*ends.tokens.op.inputs, looked_up]
    for op in tape.ops:
        if op.kind != "add" or len(op.inputs) != 2 or shape[:2] != tuple(ends.index.shape):
            continue
        words = [ref for ref in op.inputs if structure.depends(ref, looked_up)]
        codes = [ref for ref in op.inputs if not any(structure.depends(ref, one) for one in given)]
        # With a token more in front (a class token) the places are not those of the look-up.
        if len(codes) != 1 or len(words) != 1 or structure.shape(words[0]) != shape:
            continue
        added = replay(tape, want=codes)[codes[0]].detach()
        if torch.broadcast_shapes(added.shape, shape) != shape:
            continue
        wide = added.expand(shape)
        if torch.equal(wide, wide[:1].expand(shape)) and bool((wide != wide[:, :1]).any()):
            return True
    return False


def examine(tape: StepTape, structure: Structure, ends: Ends) -> dict[str, Any]:
    assert ends.layout is not None
    axis, rows, places = ends.layout
    index = ends.inputs
    row, begin, end = chosen_row(index)
    want = (ends.loss.logits,)
    base = replay(tape, want=want)[ends.loss.logits]
    scores = ends.scores(base).float()
    result: dict[str, Any] = {
        "input": ends.tokens.weight or "frozen table",
        "line": ends.loss.line,
        "loss": ends.loss.op.number,
        "axis": axis,
        "axis_is_known": ends.axis_is_known,
        "axis_has_codes": axis == 1 and told_apart(tape, structure, ends),
        "pooled": places == 0,
        "expects_causal": ends.causal,
        "shift": None if ends.alignment is None else ends.alignment.shift,
        "rows": rows,
        "finite": bool(torch.isfinite(scores).all()),
        "spread": float(scores.std(0).mean()) if len(scores) > 1 else 0.0,
    }
    if not result["finite"]:
        return result
    middle = (begin + end) // 2
    moved = movement(tape, ends, base, changed(index, ends, row, range(middle, end)))
    spread = max(result["spread"], 1e-12)
    if places == 0:
        own = moved[row] if len(moved) == rows else moved.max()
        others = torch.cat([moved[:row], moved[row + 1 :]])
        every = changed(index, ends, row, range(begin, end))
        whole = movement(tape, ends, base, every)
        result |= {
            "any_token": float(torch.maximum(own, whole[row])) / spread,
            "other_rows": float(others.max()) / spread if len(others) else 0.0,
        }
        if result["any_token"] == 0 and len(moved) == rows:
            result["stirred"] = by_stirred_weights(tape, ends, every, lambda moved: moved[row])
    else:
        grid = ends.grid(moved)
        # A place whose target does not count may see what it likes: the prefix of a prefix model, padding.
        counts = (
            ends.loss.valid.cpu()
            if ends.loss.class_dim is not None
            else torch.ones(len(moved), dtype=torch.bool)
        )
        counts = ends.grid(counts)
        result |= by_region(grid, counts, row, middle, spread)
        result["crossed"] = is_crossed(moved, counts, ends, row, middle)
        if index.shape[1] - middle > 1 or middle > begin:
            one_token = changed(index, ends, row, range(middle, middle + 1))
            one = movement(tape, ends, base, one_token)
            grid = ends.grid(one)
            result |= of_one_token(grid, row, middle, spread)
            if ends.causal and hole_behind(grid[row], middle):
                result["hole"] = smallest_hole(tape, ends, row, begin, middle)
            if result["other_places"] == 0:
                result["stirred"] = by_stirred_weights(
                    tape, ends, one_token, partial(elsewhere, ends, row, middle)
                )
                result["other_inputs"] = by_other_inputs(tape, structure, ends, base) / spread
    forbidden = result.get("future", 0.0) > ROUNDING and ends.causal
    if forbidden or result["other_rows"] > ROUNDING:
        tokens = changed(index, ends, row, range(middle, end))
        result |= locate(tape, structure, ends, tokens, row, middle)
    return result


def of_one_token(grid: Tensor, row: int, middle: int, spread: float) -> dict[str, Any]:
    """Which places of its row a single token moves, and how far behind it."""
    others = torch.cat([grid[row, :middle], grid[row, middle + 1 :]])
    return {
        "own_share": own_share(grid[row], middle),
        "one_token": float(grid.max()) / spread,
        # 0: the score at a token's own place has seen it; 1: only the next one has.
        "lag": lag(grid[row], middle),
        "other_places": float(others.max()) / spread if len(others) else None,
    }


def elsewhere(ends: Ends, row: int, place: int, moved: Tensor) -> Tensor:
    """Of the movement, that at the other places of the row."""
    grid = ends.grid(moved)
    return torch.cat([grid[row, :place], grid[row, place + 1 :]])


def by_stirred_weights(
    tape: StepTape, ends: Ends, index: Tensor, where: Callable[[Tensor], Tensor]
) -> float | None:
    """The movement there, over the spread, with other weights: gates and projections that start at zero pass nothing
    yet, a wrong mask never will. None where the step cannot be run so."""
    weights, want = stirred(tape, STIRRED), (ends.loss.logits,)
    try:
        base = replay(tape, parameters=weights, want=want)[ends.loss.logits]
        same = twins(tape, ends.tokens, index)
        other = replay(tape, parameters=weights, indices=same, want=want)[ends.loss.logits]
    except ReplayError:
        return None
    scores = ends.scores(base).float()
    moved = (ends.scores(other).float() - scores).abs().amax(dim=1).cpu()
    found = where(moved)
    return float(found.max()) / max(float(scores.std(0).mean()), 1e-12) if found.numel() else None


def by_other_inputs(tape: StepTape, structure: Structure, ends: Ends, base: Tensor) -> float:
    """The largest movement when all tokens of another look-up change: a memory that is read, a source text.

    Look-ups of the same shape may be added at the token's own place and say nothing about other places.
    """
    largest = 0.0
    for site in input_sites(tape):
        made, index = site.op.outputs[0], site.index
        if site.kind != "data" or index is None or made is None or index.shape == ends.index.shape:
            continue
        if structure.depends(ends.loss.logits, made) and index.numel() > 1:
            other = index.reshape(-1).roll(1).reshape(index.shape)
            value = replay(tape, indices=twins(tape, site, other), want=(ends.loss.logits,))
            moved = ends.scores(value[ends.loss.logits]).float() - ends.scores(base).float()
            largest = max(largest, float(moved.abs().max()))
    return largest


def by_region(grid: Tensor, counts: Tensor, row: int, middle: int, spread: float) -> dict[str, Any]:
    """Movement before the first changed place (where targets count), from it on, and in other rows."""
    others = torch.cat([grid[:row], grid[row + 1 :]])
    before, after = grid[row, :middle] * counts[row, :middle], grid[row, middle:]
    return {
        "future": float(before.max()) / spread if len(before) else 0.0,
        "after": float(after.max()) / spread if len(after) else 0.0,
        "other_rows": float(others.max()) / spread if others.numel() else 0.0,
        # How far back the first changed token is seen: 1 is a mask off by one in one layer.
        "reach": middle - int(before.nonzero()[0]) if before.any() else 0,
    }


def is_crossed(moved: Tensor, counts: Tensor, ends: Ends, row: int, middle: int) -> bool:
    """Scores that lie places first beside targets that lie rows first, or the other way round.

    Read in the layout of the targets the change shows in other rows; in the other layout it is where it belongs.
    """
    assert ends.layout is not None
    axis, rows, places = ends.layout
    if not ends.causal or rows < 2:
        return False
    other = moved.reshape(places, rows).T if axis == 1 else moved.reshape(rows, places)

    def misplaced(grid: Tensor) -> bool:
        found = by_region(grid, counts, row, middle, 1.0)
        return bool(max(found["other_rows"], found["future"]) > 0 or found["after"] == 0)

    return misplaced(ends.grid(moved)) and not misplaced(other)


def smallest_hole(tape: StepTape, ends: Ends, row: int, begin: int, middle: int) -> int:
    """Of the holes behind several tokens, without dropout: blocks and patches have their borders somewhere, chance its own."""
    index = ends.inputs
    sober = without_dropout(tape)
    base = replay(sober, want=(ends.loss.logits,))[ends.loss.logits]
    holes = []
    for place in {(begin + middle) // 2, max(begin, middle - 1), middle}:
        moved = movement(sober, ends, base, changed(index, ends, row, [place]))
        holes.append(hole_behind(ends.grid(moved)[row], place))
    return min(holes)


def hole_behind(line: Tensor, place: int) -> int:
    """Places just after the first one that sees a token which do not see it, while later ones do: 0 in every sound model.

    A window that ends is no hole: behind it nothing moves any more.
    """
    seen = (line[place:] > 0).nonzero().flatten().tolist()
    return seen[1] - seen[0] - 1 if len(seen) > 1 else 0


def own_share(line: Tensor, place: int) -> float | None:
    """Movement at the changed token's own place over the largest: 0 means that no skip path brings it there."""
    largest = float(line.max())
    if place >= len(line) or largest <= 0:
        return None
    return float(line[place]) / largest


def lag(line: Tensor, place: int) -> int | None:
    """Places from the changed token on to the first score that moves at all; None where none does."""
    moved = line[place:].nonzero().flatten()
    return int(moved[0]) if len(moved) and not bool(line[:place].any()) else None


def locate(
    tape: StepTape, structure: Structure, ends: Ends, tokens: Tensor, row: int, middle: int
) -> dict[str, Any]:
    """The first op whose value moves where it may not: in another row, or before the changed place."""
    assert ends.layout is not None
    axis, rows, _ = ends.layout
    length = ends.index.shape[axis]
    made = ends.tokens.op.outputs[0]
    assert made is not None
    refs: list[Ref] = []
    ops = []
    for op in tape.ops:
        out = op.outputs[0] if op.outputs else None
        if out is None or op.synthetic or op.number > ends.loss.op.number:
            continue
        if structure.depends(out, made) and places_of(structure.shape(out), rows, length, axis):
            refs.append(out)
            ops.append(op)
    before = replay(tape, want=refs)
    after = replay(tape, indices=twins(tape, ends.tokens, tokens), want=refs)
    found: dict[str, Any] = {}
    for op, ref in zip(ops, refs):
        where = places_of(structure.shape(ref), rows, length, axis)
        assert where is not None
        batch, time = where
        moved = (after[ref].float() - before[ref].float()).abs()
        scale = float(before[ref].float().std()) or 1.0
        moved = moved.movedim(batch, 0)
        others = torch.cat([moved[:row], moved[row + 1 :]])
        if "mixing_op" not in found and others.numel() and float(others.max()) > ROUNDING * scale:
            found |= named("mixing", structure, op)
        if "leaking_op" not in found and time is not None:
            own = moved[row].movedim(time - (batch < time), 0)[:middle]
            if own.numel() and float(own.max()) > ROUNDING * scale:
                found |= named("leaking", structure, op)
    return found


def named(what: str, structure: Structure, op: Op) -> dict[str, Any]:
    """The op, or what it is only another shape of."""
    source = op
    for _, above in structure.up(op.inputs[0]) if op.kind in PASSING_ON and op.inputs else ():
        source = above
        if above.kind not in PASSING_ON:
            break
    return {f"{what}_op": source.name, f"{what}_module": source.module, f"{what}_line": source.line}


def places_of(
    shape: tuple[int, ...], rows: int, length: int, axis: int
) -> tuple[int, int | None] | None:
    """(batch dimension, time dimension or None) of an activation; None where it cannot be told."""
    if len(shape) < 2:
        return None
    batch = 0 if axis == 1 else 1
    if shape[batch] != rows:
        if axis == 0 and shape[0] == rows:
            batch = 0
        else:
            return None
    times = [dim for dim, size in enumerate(shape) if size == length and dim != batch]
    if len(times) == 1:
        return batch, times[0]
    if len(times) > 1 and axis == 1 and len(shape) == 3 and shape[1] == length:
        return batch, 1  # (B, T, T): places first
    return batch, None
