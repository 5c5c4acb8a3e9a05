"""The two ends of a taped step: each loss with the token look-ups that it depends on, and how they lie together.

Legend: N rows of scores that enter the loss, C classes, B rows of the batch, T places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.graph.alignment import (
    Alignment,
    Dealt,
    Ragged,
    align,
    dealt,
    layouts,
    looks_like_positions,
    ragged,
)
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.picked import in_one_piece, unpicked
from traindoctor.graph.sites import InputSite, LossSite
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.ops import Op
from traindoctor.tape.tape import StepTape

# Regrouped sums (experts, padding removed) may move a number by rounding; a fault moves it by 1e-3 and more.
ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class Ends:
    """One loss and one token look-up that reaches it."""

    loss: LossSite
    tokens: InputSite
    scores_shape: tuple[int, ...]
    """Shape of what enters the loss, before it is brought to (N, C)."""

    @cached_property
    def index(self) -> Tensor:
        assert self.tokens.index is not None  # an input is known by it
        return self.tokens.index.detach().cpu().long()

    @property
    def contrastive(self) -> bool:
        """Each row is its own class: rows of the batch are compared with each other on purpose."""
        if not self.has_classes:
            return False
        flat = self.loss.targets.cpu()
        same = bool(flat.numel() > 1 and torch.equal(flat, torch.arange(flat.numel())))
        return same and flat.numel() in (self.index.shape[0], self.loss.num_classes)

    @property
    def has_classes(self) -> bool:
        return self.loss.class_dim is not None and not self.loss.targets.is_floating_point()

    @cached_property
    def alignment(self) -> Alignment | None:
        """The exact shift between tokens and targets, if there is one."""
        if not self.has_classes or self.index.ndim != 2 or self.one_answer_per_row:
            return None
        y = self.loss.targets.cpu().long().numpy()
        return align(self.index.numpy(), y, self.loss.valid.cpu().numpy())

    @property
    def one_answer_per_row(self) -> bool:
        """A classifier: that its answer stands somewhere in the row makes no text of it."""
        B, T = self.index.shape
        if self.num_rows == B * T:
            valid = self.loss.valid.cpu()
            per_row = (valid.view(B, T).sum(1), valid.view(T, B).sum(0))
            return any(bool((counts == 1).all()) for counts in per_row)
        return self.num_rows in (B, T)

    @property
    def dealt(self) -> Dealt | None:
        """Where no shift fits row by row: do the targets fit the rows of the batch in another order?"""
        if not self.has_classes or self.index.ndim != 2 or self.alignment is not None:
            return None
        y = self.loss.targets.cpu().long().numpy()
        return dealt(self.index.numpy(), y, self.loss.valid.cpu().numpy())

    @property
    def ragged(self) -> Ragged | None:
        """Where no shift fits all rows: does each row have one of its own?"""
        if not self.has_classes or self.index.ndim != 2 or self.alignment is not None:
            return None
        y = self.loss.targets.cpu().long().numpy()
        return ragged(self.index.numpy(), y, self.loss.valid.cpu().numpy())

    @property
    def causal(self) -> bool:
        """Next-token prediction: the answer stands in the input, one or more places on."""
        found = self.alignment
        return found is not None and found.shift is not None and found.shift > 0

    @cached_property
    def layout(self) -> tuple[int, int, int] | None:
        """(time axis of the index, rows, places) of the scores; places 0: one answer per row of the batch."""
        if self.index.ndim != 2:
            return None
        N = self.num_rows
        B, T = self.index.shape
        if self.alignment is not None:
            axis = self.alignment.axis
            rows = B if axis == 1 else T
            return (axis, rows, N // rows) if N % rows == 0 else None
        if N == B and N != B * T:
            return 1, B, 0
        if N == T and B != T and B > 1:
            return 0, T, 0
        flat = np.zeros(N, dtype=np.int64)
        for axis, laid, _ in layouts(self.index.numpy(), flat, flat == 0):
            # Without a shift to tell, a full rectangle is read batch-first, as most scripts have it.
            return axis, (B if axis == 1 else T), laid.shape[axis]
        return None

    @property
    def axis_is_known(self) -> bool:
        """Whether time can be told from batch by more than habit."""
        if self.alignment is not None:
            return self.alignment.shift != 0
        return self.layout is not None and self.layout[2] == 0

    @property
    def num_rows(self) -> int:
        """N: rows of scores."""
        if self.loss.class_dim is None:
            return self.scores_shape[0] if self.scores_shape else 1
        return int(self.loss.targets.shape[0])

    @property
    def inputs(self) -> Tensor:
        """The index with rows first, (B, T)."""
        return self.index if self.layout is None or self.layout[0] == 1 else self.index.T

    def grid(self, values: Tensor) -> Tensor:
        """(rows, places, ...) of what each row of scores has, (N, ...)."""
        assert self.layout is not None
        axis, rows, places = self.layout
        if axis == 1:
            return values.reshape(rows, places, *values.shape[1:])
        return values.reshape(places, rows, *values.shape[1:]).transpose(0, 1)

    def scores(self, value: Tensor) -> Tensor:
        """What enters the loss, as (N, C)."""
        if self.loss.class_dim is None:
            return value.reshape(self.num_rows, -1)
        return self.loss.rows(value)


def find_ends(tape: StepTape, structure: Structure | None = None) -> list[Ends]:
    """Each loss with each look-up of data that it depends on; the first micro-batch's only."""
    structure = structure or Structure(tape)
    sites = [site for site in input_sites(tape) if _has_tokens(site)]
    found = []
    for loss in loss_sites(tape):
        for site in sites:
            made = site.op.outputs[0]
            if made is not None and structure.depends(loss.logits, made):
                found.append((loss, site))
    first = [pair for pair in found if pair[0].op.segment == found[0][0].op.segment]
    return [
        Ends(loss, site, structure.shape(loss.logits))
        for loss, site in _whole_losses(tape, structure, first)
    ]


def _has_tokens(site: InputSite) -> bool:
    if site.kind != "data" or site.index is None or site.index.ndim == 0:
        return False
    return not looks_like_positions(site.index.detach().cpu().long().numpy())


def _whole_losses(
    tape: StepTape, structure: Structure, found: Sequence[tuple[LossSite, InputSite]]
) -> list[tuple[LossSite, InputSite]]:
    """Losses over all places of their look-up; those that were taken piece by piece are one."""
    pieces: dict[object, list[tuple[LossSite, InputSite]]] = {}
    for number, (loss, site) in enumerate(found):
        assert site.index is not None
        whole = laid_out(tape, structure, loss, site.index.numel())
        # Only what was laid out can be a piece: other losses on the same scores are losses of their own.
        key = number if whole is loss else (whole.logits, loss.kind, loss.line, id(site))
        pieces.setdefault(key, []).append((whole, site))
    return [(in_one_piece([loss for loss, _ in all_]), all_[0][1]) for all_ in pieces.values()]


def laid_out(tape: StepTape, structure: Structure, loss: LossSite, places: int) -> LossSite:
    """The loss over all places of the look-up, where it was taken over some that the script picked."""
    key = (id(loss), places)
    if key not in tape.memo:
        tape.memo[key] = unpicked(tape, structure, loss, places) or loss
    return tape.memo[key]  # type: ignore[no-any-return]


def chosen_row(index: Tensor) -> tuple[int, int, int]:
    """(row, begin, end): the row with most tokens before its constant tail (padding changes nothing, rightly)."""
    lengths, begins = [], []
    for line in index:
        same = (line == line[-1]).flip(0).int()
        tail = int(same.cumprod(0).sum())
        head = int((line == line[0]).int().cumprod(0).sum())
        lengths.append(len(line) - (tail if tail >= 3 else 0))
        begins.append(head if head >= 3 and head < len(line) else 0)
    spans = [length - begin for length, begin in zip(lengths, begins)]
    row = max(range(len(spans)), key=spans.__getitem__)
    if spans[row] < 2:
        raise ReplayError("every row is a single repeated token")
    return row, begins[row], lengths[row]


def changed(index: Tensor, ends: Ends, row: int, places: Sequence[int]) -> Tensor:
    """The index at the look-up with other tokens at these places, drawn from the batch's own."""
    present = torch.unique(index)
    new = index.clone()
    for place in places:
        old = int(index[row, place])
        at = int((present == old).nonzero()[0])
        new[row, place] = present[(at + 1 + place % max(1, len(present) - 1)) % len(present)]
        if int(new[row, place]) == old:
            new[row, place] = present[(at + 1) % len(present)]
    if ends.layout is not None and ends.layout[0] == 0:
        new = new.T
    return new


def twins(tape: StepTape, site: InputSite, index: Tensor) -> dict[Op, Tensor]:
    """All look-ups of the same tokens change together (two tables indexed by one text)."""
    old = site.index
    assert old is not None
    index = index.to(old.device)
    return {
        other.op: index
        for other in input_sites(tape)
        if other.index is not None
        and other.index.shape == old.shape
        and other.op.segment == site.op.segment
        and torch.equal(other.index, old)
    }


def movement(tape: StepTape, ends: Ends, base: Tensor, index: Tensor) -> Tensor:
    """(N,) largest change of any score of the row."""
    other = replay(tape, indices=twins(tape, ends.tokens, index), want=(ends.loss.logits,))
    moved = ends.scores(other[ends.loss.logits]).float() - ends.scores(base).float()
    return moved.abs().amax(dim=1).cpu()
