"""Puts the data of another step into a tape: which tensor of the tape came from where in the step.

A tape knows its data as tensors; a step's log knows tensors by where they were seen. They are joined by value on
the taped steps: the same shape, dtype and numbers there, and on every other step that was taped.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.experiment.snapshot import Source, StepLog
from traindoctor.experiment.stretch import Sizes, Stretch, is_table, same_functions
from traindoctor.tape.execute import replay
from traindoctor.tape.ops import PARAMETER, Op, Ref, is_float, refs_in
from traindoctor.tape.tape import StepTape

# Where a value may be looked up in a log, the surest first: what the model was called with. A variable of the script
# is the last resort: it may have another shape, or not be there, at other steps.
VARIABLE = "variable"
ORDER = {"forward": 0, "loss": 1, "tokens": 2, "batch": 3, VARIABLE: 4}
TAPPED = frozenset(ORDER) - {VARIABLE}
# Tensors that a script joins to one batch: two answers, views, micro-batches.
MOST_PARTS = 8


# One tensor of the data on each taped step, with the log of that step.
Values = Sequence[tuple[Tensor, StepLog]]


@dataclass
class DataMap:
    """For each tensor of a tape's data: its source in a log, or None for one that never changes."""

    tape: StepTape
    data: dict[Ref, Source | None]
    made: dict[Ref, Source]
    """Values made on the tape from data that has no source of its own, and are put in after they are made."""
    shapes: dict[Ref, tuple[int, ...]] = field(default_factory=dict)
    """Shape of the source where it is not that on the tape."""

    stretch: Stretch | None = None
    """Set where most batches have other sizes than the taped one."""

    def fits(self, log: StepLog) -> bool:
        """The log has every source, in the shape that was taped or that the tape can be stretched to."""
        if self.stretch is not None:
            known = all(source in log.data for _, source in self._sources())
            return known and self.stretch.reaches(log.data)
        shapes = [(s, self.shapes.get(r, self._size(r))) for r, s in self._sources()]
        return all(s in log.data and tuple(log.data[s].shape) == size for s, size in shapes)

    def tape_for(self, log: StepLog) -> StepTape:
        return self.tape if self.stretch is None else self.stretch.tape(log.data)

    def stretched(self, log: StepLog, others: Sequence[tuple[StepTape, StepLog]]) -> DataMap:
        """The map for data of any size, by another taped step with other sizes; ReplayError where that cannot be."""
        sources = dict.fromkeys(source for _, source in self._sources())
        others = [(t, l) for t, l in others if same_functions(self.tape, t)]
        others = [(t, l) for t, l in others if all(source in l.data for source in sources)]
        for tape, there in others:
            sizes = Sizes.of((s, log.data[s], there.data[s]) for s in sources)
            if sizes.first and not self.shapes:
                tapes = [tape, *(t for t, _ in others if t is not tape and t is not self.tape)]
                stretch = Stretch(self.tape, tapes, sizes, self._tables(tape))
                return replace(self, stretch=stretch)
        raise ReplayError(
            "no second step that calls the same functions on data of other sizes could be repeated"
        )

    def _tables(self, other: StepTape) -> list[Ref]:
        """What the loss depends on and has another size in the other step, though it is no data of its own."""
        known = {ref for ref, _ in self._sources()}
        loose = [
            ref
            for ref, value in self.tape.constants.items()
            if ref not in known and ref in other.constants
            if other.constants[ref].shape != value.shape
        ]
        return _reach_roots(self.tape, loose, self.made)

    def _size(self, ref: Ref) -> tuple[int, ...]:
        return tuple(self.tape.geometry[ref.index].size)

    def _sources(self) -> Iterable[tuple[Ref, Source]]:
        yield from ((ref, source) for ref, source in self.data.items() if source is not None)
        yield from self.made.items()

    @property
    def uses_variables(self) -> bool:
        return any(source[0] == VARIABLE for _, source in self._sources())

    def batch(self, log: StepLog) -> dict[Ref, Tensor]:
        found = {r: log.data[source] for r, source in self.data.items() if source is not None}
        return found | {ref: found[ref].reshape(self._size(ref)) for ref in self.shapes}

    def substitute(self, log: StepLog) -> dict[Ref, Tensor]:
        return {ref: log.data[source] for ref, source in self.made.items()}


def map_data(
    tape: StepTape, log: StepLog, others: Sequence[tuple[StepTape, StepLog]] = ()
) -> DataMap:
    """Raises ReplayError where some data of the step cannot be followed to other steps."""
    others = [(t, l) for t, l in others if t is not tape and _alike(t, tape)]
    data: dict[Ref, Source | None] = {}
    lost: dict[Ref, Values] = {}
    for number, ref in enumerate(tape.data):
        values = [
            (tape.constants[ref], log),
            *((t.constants[t.data[number]], l) for t, l in others),
        ]
        source = _source(values, TAPPED)
        if source is not None or (others and _all_equal(values)):
            data[ref] = source
        else:
            lost[ref] = values
    later, unknown = _later_batches(tape, log, others)
    data |= later
    lost |= unknown
    made = _made(tape, log)
    tapped = _made_values(tape, log, others, set(data.values()), {"forward", "loss"})
    made = tapped | made
    if _reach_roots(tape, list(lost), made):
        made |= _made_values(tape, log, others, {*data.values(), *made.values()}, {VARIABLE})
    for ref in _reach_roots(tape, list(lost), made):
        held = _source(lost[ref], {VARIABLE}, _same_numbers)
        if held is not None:
            data[ref] = held
            continue
        shape = tuple(tape.geometry[ref.index].size)
        raise ReplayError(
            f"a data tensor of shape {shape} could not be traced to other steps: it is no "
            "module argument, loss target, part of a DataLoader batch or variable where "
            "backward is called"
        )
    sizes = {r: tuple(log.data[s].shape) for r, s in data.items() if s is not None}
    shapes = {r: size for r, size in sizes.items() if size != tuple(tape.geometry[r.index].size)}
    return DataMap(tape, data, made, shapes)


def needs_variables(pairs: Sequence[tuple[StepTape, StepLog]]) -> bool | None:
    """Whether something that the last of the taped steps needs was seen in a variable alone; None: not known yet."""
    if not pairs:
        return None
    try:
        needed = map_data(*pairs[-1], pairs).uses_variables
    except ReplayError:
        needed = False  # what is lost is lost with variables too
    # A second taped step tells what never changes, a mask or a table.
    return needed if len(pairs) > 1 else None


def _later_batches(
    tape: StepTape, log: StepLog, others: Sequence[tuple[StepTape, StepLog]]
) -> tuple[dict[Ref, Source], dict[Ref, Values]]:
    """Whole numbers that the step itself made out of nothing while it was taped: a second micro-batch.

    They are the data of another step only if they differ there, perhaps in another shape (`y[..., None]`). Floats made
    that way are noise, and stay, unless a module or a loss was given them.
    """
    found: dict[Ref, Source] = {}
    lost: dict[Ref, Values] = {}
    known = set(tape.data)
    others = [(t, l) for t, l in others if len(t.geometry) == len(tape.geometry)]
    for ref, value in tape.constants.items():
        if ref in known or not others:
            continue
        values = [(value, log)]
        values += [(t.constants[ref], l) for t, l in others if ref in t.constants]
        if len(values) == 1 or _all_equal(values) or is_table([value for value, _ in values]):
            continue
        source = _source(values, TAPPED, _same_numbers)
        if source is not None:
            found[ref] = source
        elif not is_float(value):
            lost[ref] = values
    return found, lost


def _all_equal(values: Values) -> bool:
    return all(_equal(values[0][0], other) for other, _ in values[1:])


def _alike(one: StepTape, other: StepTape) -> bool:
    """The same data in the same order."""
    if len(one.data) != len(other.data):
        return False
    sizes = [
        (one.geometry[a.index].size, other.geometry[b.index].size)
        for a, b in zip(one.data, other.data)
    ]
    return all(a == b for a, b in sizes) or same_functions(one, other)


def _source(
    pairs: Values,
    kinds: Container[str] = ORDER,
    same: Callable[[Tensor, Tensor], bool] | None = None,
) -> Source | None:
    """Where every one of the taped steps saw its value."""
    value, log = pairs[0]
    same = same or _equal
    candidates = sorted(log.data.items(), key=lambda item: (ORDER[item[0][0]], item[0]))
    for source, seen in (item for item in candidates if item[0][0] in kinds):
        if same(value, seen) and _seen_as(source, pairs[1:], same):
            return source
    return None


def source_of(value: Tensor, log: StepLog) -> Source | None:
    """Where in the step a tensor with this very value was seen."""
    return _source([(value, log)])


def sources_of(tape: StepTape, log: StepLog) -> dict[Ref, tuple[Source, ...]]:
    """Of the tape's data, where the log has seen it; or the tensors that were joined to it, one after the other."""
    plain = {source: seen for source, seen in log.data.items() if _is_plain(seen)}
    log = replace(log, data=plain)
    data = {ref: tape.constants[ref] for ref in tape.data if _is_plain(tape.constants[ref])}
    found = {ref: _joined(value, log) for ref, value in data.items()}
    return {ref: sources for ref, sources in found.items() if sources}


def _is_plain(value: Tensor) -> bool:
    """Neither sparse nor nested, sharded or without data: those cannot be compared and cut."""
    return type(value) is Tensor and value.layout == torch.strided and not value.is_meta


def _joined(value: Tensor, log: StepLog) -> tuple[Source, ...]:
    whole = source_of(value, log)
    if whole is not None or not value.dim():
        return () if whole is None else (whole,)
    parts: list[Source] = []
    while len(value):
        if len(parts) == MOST_PARTS:
            return ()
        fitting = [s for s, part in log.data.items() if _begins_with(value, part)]
        if not fitting:
            return ()
        # Of those with the same numbers (masks of ones) each has its turn.
        source = next((one for one in fitting if one not in parts), fitting[0])
        parts.append(source)
        value = value[len(log.data[source]) :]
    return tuple(parts)


def _begins_with(value: Tensor, part: Tensor) -> bool:
    return part.dim() > 0 and 0 < len(part) <= len(value) and _equal(value[: len(part)], part)


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() and _equal(a.flatten(), b.flatten())


def _made(tape: StepTape, log: StepLog) -> dict[Ref, Source]:
    """Values inside the tape that a log has seen: `y.view(-1)` that became a loss function's target."""
    found: dict[Ref, Source] = {}
    seen = [(s, t) for s, t in log.data.items() if s[0] in ("loss", "tokens")]
    for op in tape.ops:
        if op.index is None:
            continue
        for source, tensor in seen:
            if _equal(op.index, tensor):
                for ref in refs_in((op.args, op.kwargs)):
                    geometry = tape.geometry[ref.index]
                    if geometry.size == tuple(tensor.shape) and ref in tape.producer:
                        if _is_integer(tape, ref, op, tensor):
                            found.setdefault(ref, source)
                break
    return found


def _made_values(
    tape: StepTape,
    log: StepLog,
    others: Sequence[tuple[StepTape, StepLog]],
    known: Container[Source | None],
    kinds: Container[str],
) -> dict[Ref, Source]:
    """Values that the step draws or computes while it is taped (a second micro-batch) and that a log has seen."""
    seen = {
        source: tensor
        for source, tensor in log.data.items()
        if source[0] in kinds and source not in known and tensor.numel() > 1
    }
    shapes = {tuple(t.shape) for t in seen.values()}
    candidates = [
        ref
        for ref, op in tape.producer.items()
        if not op.depends_on & PARAMETER and tuple(tape.geometry[ref.index].size) in shapes
    ]
    if not candidates:
        return {}
    pairs = [(tape, log), *((t, l) for t, l in others if len(t.geometry) == len(tape.geometry))]
    replays = [(replay(t, want=candidates), l) for t, l in pairs[:2]]
    found: dict[Ref, Source] = {}
    for ref in candidates:
        values = [(replayed[ref].detach(), l) for replayed, l in replays]
        source = next((s for s in seen if _seen_as(s, values, _equal)), None)
        if source is not None:
            found[ref] = source
    return found


def _seen_as(source: Source, values: Values, same: Callable[[Tensor, Tensor], bool]) -> bool:
    return all(source in log.data and same(value, log.data[source]) for value, log in values)


def _is_integer(tape: StepTape, ref: Ref, op: Op, tensor: Tensor) -> bool:
    """The index argument of the op: its place is known by shape, unless logits have the same shape."""
    same = [
        r
        for r in refs_in((op.args, op.kwargs))
        if tape.geometry[r.index].size == tuple(tensor.shape)
    ]
    return len(same) == 1 and same[0] == ref


def _reach_roots(tape: StepTape, lost: Sequence[Ref], made: Mapping[Ref, Source]) -> list[Ref]:
    """Those of `lost` whose values get to the loss although `made` is put in."""
    roots = {root.ref for root in tape.roots if root.ref is not None}
    reaching = []
    for start in lost:
        touched = {start}
        for op in tape.ops:
            if any(ref in touched for ref in op.inputs):
                touched.update(
                    r for r in (*op.outputs, *op.writes) if r is not None and r not in made
                )
        if touched & roots:
            reaching.append(start)
    return reaching
