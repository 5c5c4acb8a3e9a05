"""Exam: do padding positions count as targets? The loss itself is asked, not ignore_index.

A row's padding is its constant tail (or head) of a token that the rows going in end with as well, and that nothing ever
follows there: a frequent class or digit is none. The loss's derivative by the scores beside it says whether it counts. A
target of padding may be a class that stands elsewhere too (the tag "nothing"): then the rows that go in say where it is.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from traindoctor.exams.base import exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.patient import Patient
from traindoctor.graph.ends import Ends, find_ends
from traindoctor.graph.padding_token import known_as_padding
from traindoctor.ground.losses import cross_entropy
from traindoctor.tape.execute import replay
from traindoctor.tape.tape import StepTape

# A token whose constant tails are never longer is a blank, a repeated letter or an end of text.
TAIL = 3
# ... unless it stands nowhere else, and twice in a row at the end of some rows.
SHORT_TAIL = 2


@exam_of_tape(name="padding", title="Do padding positions count as targets", cost=3)
def padding(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """Share of COUNTED targets in constant tails, in which share of rows, and the nll there against elsewhere."""
    found = find_ends(tape)
    ends = [e for e in found if e.has_classes and e.layout is not None and e.layout[2] > 1]
    if not ends:
        raise nothing_beside_tokens(tape, found)
    return {"pairs": [examine(tape, e) for e in ends[:2]], "step": tape.step}


def examine(tape: StepTape, ends: Ends) -> dict[str, Any]:
    assert ends.layout is not None
    axis, rows, _ = ends.layout
    y = ends.loss.targets.cpu()
    grid, valid = ends.grid(y), ends.grid(ends.loss.valid.cpu())
    tails, token, in_rows = input_tails(ends, grid, valid) or target_tails(ends, grid, valid)
    tails &= valid
    flat_tails = (tails if axis == 1 else tails.T).reshape(-1)
    row = {
        "line": ends.loss.line,
        "token": token,
        "rows": in_rows,
        "tail_share": float(tails.float().mean()),
        # Tails of one length in every row belong to the task, not to the batching.
        "lengths_vary": bool(tails.sum(1).float().std() > 0) if rows > 1 else False,
        "known_as_padding": False,
        "counted": 0.0,
    }
    if not flat_tails.any():
        return row
    assert token is not None
    if not row["lengths_vary"]:
        row["known_as_padding"] = known_as_padding(tape, ends, token)
    counts = counted(tape, ends).cpu()
    scores = (
        ends.scores(replay(tape, want=[ends.loss.logits])[ends.loss.logits].detach()).float().cpu()
    )
    row["counted"] = float((counts & flat_tails).sum()) / max(1, int(counts.sum()))
    row |= {"nll_padding": None, "nll_elsewhere": None}
    if scores.shape[1] != ends.loss.num_classes:
        return (
            row  # places were picked before the head: what it would say of the others is not known
        )
    nll = cross_entropy(scores, y.clamp(0, scores.shape[1] - 1).long(), each=True)
    inside, outside = nll[counts & flat_tails], nll[counts & ~flat_tails]
    row["nll_padding"] = float(inside.mean()) if len(inside) else None
    row["nll_elsewhere"] = float(outside.mean()) if len(outside) else None
    return row


def input_tails(ends: Ends, grid: Tensor, valid: Tensor) -> tuple[Tensor, int, float] | None:
    """Constant tails of the rows that go in, of a token that stands nowhere else, beside one and the same target.

    Asked where targets are no tokens; a blank that is to be filled has targets that differ.
    """
    if ends.causal or ends.layout is None or ends.index.ndim != 2 or ends.alignment is not None:
        return None
    inputs = ends.inputs
    if inputs.shape != grid.shape:
        return None
    tails, token, in_rows = constant_tails(inputs, torch.ones_like(valid))
    if token is None or bool(((inputs == token) & ~tails).any()):
        return None
    answers = grid[tails & valid]
    if not len(answers) or bool((answers != answers[0]).any()):
        return None
    return tails, int(answers[0]), in_rows


def target_tails(ends: Ends, grid: Tensor, valid: Tensor) -> tuple[Tensor, int | None, float]:
    """Constant tails of the rows of targets, of a token that the rows going in end with, too, and never leave."""
    tails, token, in_rows = constant_tails(filled(grid, valid), valid)
    inputs = ends.inputs
    if token is None or not closes_rows(inputs, token):
        return torch.zeros_like(tails), None, 0.0
    if inputs.shape == grid.shape:
        # A class may have the number of the padding token: where a row goes in without padding it is one.
        tails = tails & beside_padding(inputs, token)
        in_rows = float(tails.any(1).float().mean())
    return tails, token, in_rows


def beside_padding(inputs: Tensor, token: int) -> Tensor:
    """Places at which a row that goes in is padded, and the one before, whose next token is padding.

    The next token of a last place is not among those that go in: it may be padding.
    """
    here = (inputs == token).int()
    at_end = here.flip(1).cumprod(1).flip(1)
    before = F.pad(at_end[:, 1:], (0, 1), value=1)
    return (at_end | before | here.cumprod(1)).bool()


def closes_rows(inputs: Tensor, token: int) -> bool:
    """Whether the token stands at the ends (or beginnings) of rows, and nowhere else."""
    here = inputs == token
    if bool(here[:, 0].all()):
        here = here[:, 1:]  # decoders of some families begin with the padding token
    if not here.any():
        return False
    place, lengths = torch.arange(here.shape[1]), here.sum(1)[:, None]
    at_end, at_begin = place >= here.shape[1] - lengths, place < lengths
    return bool((here == at_end).all() or (here == at_begin).all())


def filled(grid: Tensor, valid: Tensor) -> Tensor:
    """One ignored target at an end of a row takes the value of its neighbour that counts.

    Libraries that shift labels themselves leave one; more of them (a prompt, places that were not picked) are meant.
    """
    grid = grid.clone()
    for row, keep in zip(grid, valid):
        places = keep.nonzero()[:, 0]
        if len(places):
            first, last = int(places[0]), int(places[-1])
            if first <= 1:
                row[:first] = row[first].clone()
            if last >= len(row) - 2:
                row[last + 1 :] = row[last].clone()
    return grid


def constant_tails(grid: Tensor, valid: Tensor) -> tuple[Tensor, int | None, float]:
    """(mask of places in the tail of the commonest tail token, that token, share of rows that have it)."""
    T = grid.shape[1]
    run = (grid == grid[:, -1:]).flip(1).int().cumprod(1).sum(1)
    head = (grid == grid[:, :1]).int().cumprod(1).sum(1)
    none = torch.zeros_like(grid, dtype=torch.bool)
    best: tuple[Tensor, int | None, float] = (none, None, 0.0)
    for lengths, tokens, at_end in ((run, grid[:, -1], True), (head, grid[:, 0], False)):
        place = torch.arange(T)
        mask = place >= T - lengths[:, None] if at_end else place < lengths[:, None]
        token = padding_token(grid, valid, mask, tokens)
        if token is None:
            continue
        # Padding is padding however little of it a row needs.
        chosen = tokens == token
        mask = mask & chosen[:, None]
        share = float(chosen.float().mean())
        if mask.float().mean() > best[0].float().mean():
            best = (mask, token, share)
    return best


def padding_token(grid: Tensor, valid: Tensor, ends: Tensor, tokens: Tensor) -> int | None:
    """What fills the ends of rows of different length; `ends` are the constant ends, `tokens` stand in them."""
    several = ((ends & valid).sum(1) >= SHORT_TAIL) & (tokens >= 0)
    long = several & (ends.sum(1) >= TAIL)
    if not several.any():
        return None
    token = int(tokens[long if long.any() else several].mode().values)
    alone = not bool(((grid == token) & ~ends).any())
    return token if alone or long.any() else None


def counted(tape: StepTape, ends: Ends) -> Tensor:
    """(N,) which rows of scores the loss depends on: its derivative by them is not 0."""
    replayed = replay(tape, want=[ends.loss.logits], gradients=True)
    scores = replayed[ends.loss.logits]
    if not scores.requires_grad:
        # Inside an autograd.Function's forward there is no graph to ask: the site's own mask is what is known.
        return ends.loss.valid
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(replayed.loss, scores, allow_unused=True)
    if gradient is None:
        return ends.loss.valid
    return ends.scores(gradient).abs().sum(1) > 0
