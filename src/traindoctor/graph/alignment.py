"""How targets lie against input tokens: which axis is time, and by how many places they are shifted.

Legend: B rows, T places. `inputs` is (B, T) or (T, B); `targets` is brought to the same layout.
A match is exact or it is nothing: "the best shift" of unrelated data means nothing at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Targets of a next-token model match at every valid place (1.000 in 60 runs); the best wrong shift
# reached 0.46 on text and 0.75 with many pads. A few damaged tokens must not hide the answer.
EXACT = 0.99
# So many places whose neighbours differ are needed before a match can be told from chance.
ENOUGH = 16
SHIFTS = range(-4, 5)
# Rows that begin differently and all end on their own beginning: no accident.
WRAPPED_ROWS = 4
# Rows are compared with each other up to so many; each needs so many places to be told from the others.
MOST_ROWS, ROW_ENOUGH = 64, 8
# A random permutation leaves one row in its place, on average.
MOSTLY = 0.4
# Share of a row's targets that must lie inside its inputs.
INSIDE = 0.5
# A text has this share of the pairs that its tokens have in another order, or less: 0.35 in one of characters, 1.0 in tokens
# drawn at random.
FEWER_PAIRS = 0.9

Tokens = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Alignment:
    """target(b, t) = input(b, t + shift) at all valid places of the time axis; or a map of places."""

    axis: int
    """The axis of the input index that is time."""
    shift: int | None
    """None: no constant shift fits."""
    match: float
    runner_up: float
    """The best other shift, on places whose neighbours differ: how far the answer stands out."""
    places: str | None = None
    """'reversed' or 'permuted': each target is the input of one fixed other place."""
    compared: int = 0
    wrapped: bool = False
    """The last targets of each row are its first inputs: the whole was rolled, not cut."""


def layouts(inputs: Tokens, targets: Tokens, valid: Mask) -> Iterator[tuple[int, Tokens, Mask]]:
    """Every way to lay N targets beside the inputs: (time axis, targets, valid), one place may be cut."""
    if inputs.ndim != 2:
        return
    rows, columns = inputs.shape
    flat, keep = targets.reshape(-1), valid.reshape(-1)
    if flat.size == rows * columns:
        square = flat.reshape(rows, columns)
        mask = keep.reshape(rows, columns)
        yield 1, square, mask
        yield 0, square, mask
        return
    for cut in (1, 2):
        if columns > cut and flat.size == rows * (columns - cut):
            yield 1, flat.reshape(rows, -1), keep.reshape(rows, -1)
        if rows > cut and flat.size == (rows - cut) * columns:
            yield 0, flat.reshape(-1, columns), keep.reshape(-1, columns)


def align(inputs: Tokens, targets: Tokens, valid: Mask) -> Alignment | None:
    """The one exact shift (or map of places), None where nothing fits or too little can be compared."""
    for axis, laid, mask in layouts(inputs, targets, valid):
        x, y, m = (inputs, laid, mask) if axis == 1 else (inputs.T, laid.T, mask.T)
        found = exact_shift(x, y, m)
        if found is not None:
            shift, match, runner_up, compared = found
            wrapped = wraps(x, y, m, shift)
            return Alignment(axis, shift, match, runner_up, compared=compared, wrapped=wrapped)
    for axis, laid, mask in layouts(inputs, targets, valid):
        x, y, m = (inputs, laid, mask) if axis == 1 else (inputs.T, laid.T, mask.T)
        places = place_map(x, y, m)
        if places is not None:
            return Alignment(axis, None, 1.0, 0.0, places=places, compared=int(m.sum()))
    return None


def exact_shift(
    x: Tokens, y: Tokens, valid: Mask, shifts: range = SHIFTS
) -> tuple[int, float, float, int] | None:
    """(shift, match, runner-up, places compared) for time on axis 1, or None."""
    telling = [match_at(x, y, valid, shift, informative=True) for shift in shifts]
    plain = [match_at(x, y, valid, shift, informative=False) for shift in shifts]
    exact = [
        index
        for index, ((share, count), (whole, _)) in enumerate(zip(telling, plain))
        if count >= ENOUGH and share >= EXACT and whole >= EXACT
    ]
    if len(exact) != 1:
        # Two shifts that both fit are a periodic or constant text: it cannot be told.
        return None
    best = exact[0]
    others = [share for index, (share, count) in enumerate(telling) if index != best and count]
    return shifts[best], plain[best][0], max(others, default=0.0), telling[best][1]


def wraps(x: Tokens, y: Tokens, valid: Mask, shift: int) -> bool:
    """Targets at the end that stand at the beginning of the inputs, in rows that do not all begin alike."""
    if shift < 1 or y.shape != x.shape or len(np.unique(x[:, 0])) < WRAPPED_ROWS:
        return False
    last, first = y[:, -shift:], x[:, :shift]
    return bool(valid[:, -shift:].all() and (last == first).all())


def match_at(
    x: Tokens, y: Tokens, valid: Mask, shift: int, *, informative: bool
) -> tuple[float, int]:
    """Share of valid targets equal to the input `shift` places on, and how many could be compared."""
    length = x.shape[1]
    begin, end = max(0, -shift), min(y.shape[1], length - shift)
    if end <= begin:
        return 0.0, 0
    keep = valid[:, begin:end].copy()
    seen = x[:, begin + shift : end + shift]
    if informative:
        # Pads and runs of blanks match at every shift: only places that differ from both neighbours tell.
        before = np.roll(x, 1, axis=1)[:, begin + shift : end + shift]
        after = np.roll(x, -1, axis=1)[:, begin + shift : end + shift]
        keep &= (seen != before) & (seen != after)
    count = int(keep.sum())
    return (float((seen == y[:, begin:end])[keep].mean()), count) if count else (0.0, 0)


def place_map(x: Tokens, y: Tokens, valid: Mask) -> str | None:
    """A copy task: every place's target is the input of one other place, the same in all rows."""
    if x.shape[0] < 4 or y.shape[1] < 3 or not valid.all():
        return None
    rows = min(x.shape[0], 32)
    width = min(y.shape[1], 64)
    equal = (y[:rows, :width, None] == x[:rows, None, :]).mean(axis=0)  # (T', T)
    source = equal.argmax(axis=1)
    if equal[np.arange(width), source].min() < EXACT or len(np.unique(source)) < width:
        return None
    total = int(source[0])
    falling = np.array_equal(source, total - np.arange(width))
    return "reversed" if falling else "permuted"


@dataclass(frozen=True)
class Dealt:
    """target(i, t) = input(j, t + shift) at all valid places: whole rows of targets belong to other rows."""

    shift: int
    moved: float
    """Share of the rows whose targets belong to another row."""
    compared: int


def dealt(inputs: Tokens, targets: Tokens, valid: Mask) -> Dealt | None:
    """Targets that fit exactly, but most of them to another row of the batch; None where that is not so."""
    for axis, laid, mask in layouts(inputs, targets, valid):
        x, y, m = (inputs, laid, mask) if axis == 1 else (inputs.T, laid.T, mask.T)
        for shift in (1, 0):
            found = _rows_that_fit(x[:MOST_ROWS], y[:MOST_ROWS], m[:MOST_ROWS], shift)
            if found is not None:
                return found
    return None


def _rows_that_fit(x: Tokens, y: Tokens, valid: Mask, shift: int) -> Dealt | None:
    """Every row of targets must fit one row of inputs and no other row may fit it by chance."""
    width = min(y.shape[1], x.shape[1] - shift)
    if len(x) < 2 or width < 2:
        return None
    seen, asked, keep = x[:, shift : shift + width], y[:, :width], valid[:, :width]
    count = keep.sum(axis=1)
    if (count < ROW_ENOUGH).any():
        return None
    equal = (asked[:, None] == seen[None]) & keep[:, None]  # (targets' row, inputs' row, place)
    share = equal.sum(axis=2) / count[:, None]
    fits = share >= EXACT
    if (fits.sum(axis=1) != 1).any():
        return None
    moved = float((fits.argmax(axis=1) != np.arange(len(x))).mean())
    return Dealt(shift, moved, int(count.sum())) if moved >= MOSTLY else None


@dataclass(frozen=True)
class Ragged:
    """Each row has its own exact shift: inputs and targets are padded on different sides, or cut at different lengths."""

    shifts: tuple[int, ...]
    """Of the rows that could be told."""
    compared: int
    text: bool
    """Whether a token of the inputs says something of the next one."""


def ragged(inputs: Tokens, targets: Tokens, valid: Mask) -> Ragged | None:
    """Where no one shift fits all rows: an exact shift for most of them, not the same for all."""
    for axis, laid, mask in layouts(inputs, targets, valid):
        x, y, m = (inputs, laid, mask) if axis == 1 else (inputs.T, laid.T, mask.T)
        own = [row_shift(*row) for row in zip(x[:MOST_ROWS], y[:MOST_ROWS], m[:MOST_ROWS])]
        found = [one for one in own if one is not None]
        several = len({shift for shift, _ in found}) > 1
        if several and len(found) >= max(2, MOSTLY * len(own)):
            compared = sum(count for _, count in found)
            return Ragged(tuple(shift for shift, _ in found), compared, has_order(x))
    return None


def has_order(x: Tokens) -> bool:
    """Rows of tokens have fewer different pairs of neighbours than the same tokens in any order."""

    def pairs(tokens: Tokens) -> int:
        return len(np.unique(np.stack([tokens[:, :-1].ravel(), tokens[:, 1:].ravel()]), axis=1).T)

    mixed = np.random.default_rng(0).permutation(x.ravel()).reshape(x.shape)
    return pairs(x) < FEWER_PAIRS * pairs(mixed)


def row_shift(x: Tokens, y: Tokens, valid: Mask) -> tuple[int, int] | None:
    """(shift, places compared) of one row, any distance; None where none fits, or several do."""
    # Padding fits padding everywhere: only targets unlike their neighbours are asked for.
    telling = valid.copy()
    telling[1:] &= y[1:] != y[:-1]
    telling[:-1] &= y[:-1] != y[1:]
    places = np.flatnonzero(telling)
    if len(places) < ROW_ENOUGH:
        return None
    fits = []
    for shift in range(-int(places[-1]), len(x) - int(places[0])):
        inside = places[(places + shift >= 0) & (places + shift < len(x))]
        # Of a row that was moved far, the rest lies behind the end of its inputs.
        if len(inside) >= max(ROW_ENOUGH, INSIDE * len(places)):
            if (x[inside + shift] == y[inside]).mean() >= EXACT:
                fits.append((shift, len(inside)))
    return fits[0] if len(fits) == 1 else None


def looks_like_positions(index: Tokens) -> bool:
    """An embedding index that counts places (or is constant) rather than naming tokens."""
    if index.size < 2 or index.min() == index.max():
        return True
    if index.ndim == 2 and index.shape[0] == index.shape[1] and index.shape[0] > 2:
        # Relative positions: each row is the one before, moved by one.
        if np.array_equal(index[1:, 1:], index[:-1, :-1]):
            return True
    line = index.reshape(-1, index.shape[-1]) if index.ndim else index.reshape(1, -1)
    return bool(_counts_up(line) or (index.ndim == 2 and _counts_up(index.T)))


def _counts_up(lines: Tokens) -> bool:
    """Along each line the numbers go up by one without a break; pads (one constant) stand at the ends."""
    if lines.shape[1] < 2:
        return False
    steps = np.diff(lines, axis=1)
    up = steps == 1
    if up.mean() < 0.3 or not up.any(axis=1).all():
        return False
    width = up.shape[1]
    first, last = up.argmax(axis=1), width - 1 - up[:, ::-1].argmax(axis=1)
    unbroken = up.sum(axis=1) == last - first + 1
    # The step into or out of the pads may be of any size.
    jumps = (~up & (steps != 0)).sum(axis=1)
    return bool(unbroken.all() and (jumps <= 1).all())
