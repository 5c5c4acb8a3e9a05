"""Where data enters the model and where the loss is taken, found on a tape.

A loss site is a call of torch's loss functions or a hand-written one: a log-softmax (or logits and a log-sum-exp)
from which targets are picked by gather, by indexing or by a product with one-hot rows, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.replay.ops import DATA, PARAMETER, Op, Ref, is_float, refs_in
from traindoctor.replay.squares import SQUARES, by_hand

if TYPE_CHECKING:
    from traindoctor.replay.tape import StepTape

# position of (input, target, reduction, ignore_index) in torch's own loss functions
TORCH_LOSSES: dict[str, tuple[int, int | None]] = {
    "cross_entropy": (6, 4),
    "nll_loss": (6, 4),
    "binary_cross_entropy": (5, None),
    "binary_cross_entropy_with_logits": (5, None),
    "mse_loss": (4, None),
    "l1_loss": (4, None),
    "smooth_l1_loss": (4, None),
    "huber_loss": (2, None),
    "kl_div": (4, None),
}
CLASSIFYING = frozenset({"cross_entropy", "nll_loss"})
# The same numbers in another shape, order of axes or dtype.
REARRANGING = frozenset(
    "view reshape flatten unflatten squeeze unsqueeze transpose permute movedim contiguous clone T mT t "
    "float double half bfloat16 to type type_as view_as alias detach data expand neg __neg__ narrow "
    "select chunk split swapaxes swapdims".split()
)
SOFTMAX = frozenset({"log_softmax", "softmax", "log_softmax_", "_log_softmax", "_softmax"})
NORMALISING = SOFTMAX | {"logsumexp", "exp", "exp_", "logaddexp"}

SiteKind = Literal["data", "position", "constant", "continuous"]


@dataclass(eq=False)
class LossSite:
    """One place where predictions meet targets. `rows(value of logits)` has one row per target."""

    op: Op
    kind: str
    logits: Ref
    targets: Tensor
    """(N,) classes; for losses on numbers the targets as they are, flattened."""
    valid: Tensor
    """(N,) which targets count."""
    reduction: str
    line: str | None
    class_dim: int | None
    num_classes: int
    from_data: bool
    """False: the targets were made by the script (a contrastive loss's diagonal)."""
    in_root: bool
    """The site is on the way to what backward was called on."""

    def rows(self, logits: Tensor) -> Tensor:
        """(N, C); activations of any width where a head stands between them and the loss."""
        if self.class_dim is None:
            return logits.reshape(-1, 1)
        moved = logits.movedim(self.class_dim, -1)
        return moved.reshape(-1, moved.shape[-1])


@dataclass(eq=False)
class InputSite:
    """Where tokens (or numbers) meet the first parameter."""

    op: Op
    index: Tensor | None
    """The integer index; None for continuous inputs."""
    weight: str | None
    """The table's parameter; None when it is frozen."""
    kind: SiteKind
    ref: Ref | None = None
    """What was looked up, or the continuous input itself."""
    num_rows: int = 0
    """Rows of the table."""


def find_loss_sites(tape: StepTape) -> list[LossSite]:
    roots = [root.ref for root in tape.roots if root.ref is not None]
    in_root = {op.number for op in tape.needed(roots)}
    sites = []
    for op in tape.ops:
        if op.name in TORCH_LOSSES:
            site = _torch_site(tape, op)
        elif op.name in ("gather", "take_along_dim", "__getitem__", "index_select", "take"):
            site = _picked_site(tape, op)
        elif op.name in ("mul", "__mul__", "__rmul__", "multiply"):
            site = _one_hot_site(tape, op)
        elif op.name in SQUARES:
            site = by_hand(tape, op)
        else:
            continue
        if site is not None:
            site.in_root = op.number in in_root
            sites.append(site)
    return sites


def _argument(op: Op, place: int | None, name: str, default: Any = None) -> Any:
    if name in op.kwargs:
        return op.kwargs[name]
    return op.args[place] if place is not None and len(op.args) > place else default


def _torch_site(tape: StepTape, op: Op) -> LossSite | None:
    logits = _argument(op, 0, "input")
    target_ref = _argument(op, 1, "target")
    targets = op.index
    if not isinstance(logits, Ref) or targets is None:
        return None
    reduction_place, ignore_place = TORCH_LOSSES[op.name]
    size = tape.geometry[logits.index].size
    kind, class_dim, num_classes = op.name, None, 1
    flat = targets.reshape(-1)
    valid = torch.ones_like(flat, dtype=torch.bool)
    if op.name in CLASSIFYING:
        class_dim = 1 if len(size) > 1 else 0
        num_classes = size[class_dim]
        if is_float(targets):
            kind = "cross_entropy_soft"
            flat = targets.movedim(class_dim, -1).reshape(-1, num_classes)
            valid = flat.sum(-1) > 0
        else:
            valid = flat != _argument(op, ignore_place, "ignore_index", -100)
    return LossSite(
        op=op,
        kind=kind,
        logits=logits,
        targets=flat,
        valid=valid,
        reduction=str(_argument(op, reduction_place, "reduction", "mean")),
        line=op.line,
        class_dim=class_dim,
        num_classes=num_classes,
        from_data=hangs_on(tape, target_ref) & DATA != 0,
        in_root=False,
    )


def hangs_on(tape: StepTape, ref: Any) -> int:
    if not isinstance(ref, Ref):
        return 0
    if ref in tape.constants:
        return DATA if ref in tape.data_set else 0
    if tape.name_of(ref) is not None:
        return PARAMETER
    op = tape.producer.get(ref)
    return op.hangs_on if op is not None else 0


def walk_back(tape: StepTape, ref: Ref) -> Iterator[tuple[Ref, Op | None]]:
    """The Ref and those it is a rearrangement of, each with the op that made it."""
    while True:
        op = tape.producer.get(ref)
        yield ref, op
        if op is None or not op.inputs:
            return
        sliced = op.name == "__getitem__" and not _index_tensors(op)
        if op.name not in REARRANGING and not sliced:
            return
        ref = op.inputs[0]


def _index_tensors(op: Op) -> list[Ref]:
    return list(refs_in(op.args[1:]))


def _picked_site(tape: StepTape, op: Op) -> LossSite | None:
    """gather(x, targets), x[arange, targets]: a loss if x is, or is normalised to, a distribution."""
    source = op.args[0] if op.args else None
    index = op.index
    picks = _index_tensors(op) or list(refs_in(op.kwargs))
    if not isinstance(source, Ref) or index is None or not picks:
        return None
    if hangs_on(tape, picks[-1]) & PARAMETER or tape.name_of(source) is not None:
        return None  # routing by the model's own choice, or a look-up in a table
    size = tape.geometry[source.index].size
    if op.name in ("gather", "take_along_dim"):
        place = 1 if op.name == "gather" else 2
        dim = _argument(op, place, "dim")
        if not isinstance(dim, int) or dim % len(size) != len(size) - 1:
            return None
        if index.dim() != len(size) or index.shape[-1] != 1:
            return None
    elif op.name == "__getitem__":
        if len(size) < 2 or len(picks) < len(size):
            return None
    else:
        return None
    return _site_of(tape, op, source, index.reshape(-1), "gather", picks[-1])


def _one_hot_site(tape: StepTape, op: Op) -> LossSite | None:
    """log-probabilities times one-hot rows."""
    refs = [ref for ref in op.args if isinstance(ref, Ref)]
    if len(refs) != 2:
        return None
    for source, other in (refs, refs[::-1]):
        for _, maker in walk_back(tape, other):
            if maker is not None and maker.name == "one_hot" and maker.index is not None:
                index = maker.index.reshape(-1)
                return _site_of(tape, op, source, index, "one_hot", other)
    return None


def _site_of(
    tape: StepTape, op: Op, source: Ref, targets: Tensor, how: str, target_ref: Ref
) -> LossSite | None:
    classes = tape.geometry[source.index].size[-1]
    found = _normalised(tape, source, classes)
    if found is None:
        return None
    kind, logits = found
    size = tape.geometry[logits.index].size
    fits = bool(size) and size[-1] == classes and _count(size) == len(targets) * classes
    if not fits:
        logits, size = source, tape.geometry[source.index].size
        if _count(size) != len(targets) * classes:
            return None
    return LossSite(
        op=op,
        kind=f"{kind}_{how}",
        logits=logits,
        targets=targets,
        valid=_valid_targets(tape, op, targets),
        reduction="none",
        line=op.line,
        class_dim=len(size) - 1,
        num_classes=classes,
        from_data=hangs_on(tape, target_ref) & DATA != 0,
        in_root=False,
    )


def _normalised(tape: StepTape, source: Ref, classes: int) -> tuple[str, Ref] | None:
    """What the picked values are: of a softmax's result, or of logits that are normalised beside the pick."""
    for ref, maker in walk_back(tape, source):
        if maker is None:
            continue
        if maker.name in SOFTMAX:
            return maker.name.strip("_"), maker.inputs[0]
        if maker.name in ("log", "log_", "clamp", "clamp_min", "add", "__add__"):
            inner = _normalised(tape, maker.inputs[0], classes) if maker.inputs else None
            if inner is not None and inner[0] == "softmax":
                return inner
        if maker.name in ("sub", "__sub__", "sub_", "__isub__") and len(maker.inputs) == 2:
            return "logsumexp", maker.inputs[0]
        if maker.name in ("div", "__truediv__", "div_", "__itruediv__") and len(maker.inputs) == 2:
            return "probability", source  # exp(x) / sum exp(x), by hand: a distribution
        _ = ref
    start = {tape.geometry[ref.index].storage for ref, _ in walk_back(tape, source)}
    reached = set(start)
    for later in tape.ops:
        if any(tape.geometry[ref.index].storage in reached for ref in later.inputs):
            if later.name in NORMALISING:
                return "logsumexp", source
            near = later.name in REARRANGING or later.name in ("sub", "__sub__", "__getitem__")
            if near or later.name in ("mul", "__mul__", "div", "__truediv__"):
                reached |= {tape.geometry[r.index].storage for r in later.outputs if r is not None}
    return None


def _count(size: tuple[int, ...]) -> int:
    total = 1
    for length in size:
        total *= length
    return total


def _valid_targets(tape: StepTape, op: Op, targets: Tensor) -> Tensor:
    """Which picked values count: a mask of 0 and 1 from the data that multiplies or selects them later."""
    valid = targets >= 0
    reached = {ref for ref in op.outputs if ref is not None}
    for later in tape.ops[op.number + 1 :]:
        if not reached & set(later.inputs):
            continue
        masks = [r for r in later.inputs if hangs_on(tape, r) == DATA and r not in reached]
        for mask in masks:
            size = tape.geometry[mask.index].size
            if _count(size) != len(targets):
                continue
            value = value_of(tape, mask)
            if value is not None and bool(((value == 0) | (value == 1)).all()):
                inverted = later.name.startswith("masked_fill")
                chosen = value.reshape(-1).to(torch.bool)
                return valid & (~chosen if inverted else chosen)
        if later.name in REARRANGING or later.name in ("sub", "__sub__", "__rsub__", "log"):
            reached |= {ref for ref in later.outputs if ref is not None}
    return valid


def value_of(tape: StepTape, ref: Ref) -> Tensor | None:
    constant = tape.constants.get(ref)
    if constant is not None:
        return constant
    try:
        return tape.evaluate(ref)
    except ReplayError:
        return None


def find_input_sites(tape: StepTape) -> list[InputSite]:
    sites = []
    for op in tape.ops:
        if op.name in ("embedding", "__getitem__", "index_select") and op.index is not None:
            site = _table_site(tape, op)
            if site is not None:
                sites.append(site)
    if not any(site.kind == "data" for site in sites):
        sites.extend(_continuous_site(tape))
    return sites


def _table_site(tape: StepTape, op: Op) -> InputSite | None:
    table = _argument(op, 1, "weight") if op.name == "embedding" else op.args[0]
    looked_up = (
        _argument(op, 0, "input")
        if op.name == "embedding"
        else next(iter(refs_in(op.args[1:])), None)
    )
    if not isinstance(table, Ref) or op.index is None or not isinstance(looked_up, Ref):
        return None
    name = next((n for r, _ in walk_back(tape, table) if (n := tape.name_of(r))), None)
    if name is None and op.name != "embedding":
        return None  # rows of an activation: no table
    size = tape.geometry[table.index].size
    if op.name != "embedding" and (len(size) < 2 or len(list(refs_in(op.args[1:]))) > 1):
        return None
    from_data = hangs_on(tape, looked_up)
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
        kinds = {ref: hangs_on(tape, ref) for ref in op.inputs}
        data = [ref for ref, kind in kinds.items() if kind == DATA]
        named = [tape.name_of(ref) for ref, kind in kinds.items() if kind & PARAMETER]
        if data and named and not op.synthetic and op.name not in TORCH_LOSSES:
            yield InputSite(op, None, named[0], "continuous", data[0])
            return


def valid_count(site: LossSite) -> int:
    return int(site.valid.sum())


def by_line(
    sites: list[LossSite], key: Callable[[LossSite], Any] | None = None
) -> dict[Any, list[LossSite]]:
    """Calls of one place in the script together: micro-batches, ranks of a loop."""
    groups: dict[Any, list[LossSite]] = {}
    for site in sites:
        chosen = key(site) if key else (site.line, site.op.package_line, site.kind)
        groups.setdefault(chosen, []).append(site)
    return groups
