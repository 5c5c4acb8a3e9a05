"""compare: makes both traces and the tolerance, and walks them. Sides are functions, dump folders or scripts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from traindoctor.compare.answer import Answer, answer
from traindoctor.compare.dump import DumpWriter, is_dump, read_dump
from traindoctor.compare.matching import match_weights
from traindoctor.compare.terms import Aligned, align, converted, weight_shapes
from traindoctor.compare.tolerance import (
    EPS,
    FEWEST,
    Distance,
    Tolerance,
    distance,
    largest,
)
from traindoctor.compare.trace import Key, Trace
from traindoctor.errors import TraindoctorError

if TYPE_CHECKING:
    from traindoctor.tracing.patient import Facts, PatientSide
    from traindoctor.tracing.script import ScriptSide

STEPS = 3
# Runs of A for the tolerance, beside the one that is compared: one as it is, the others perturbed.
DRAWS = 3
# TF32 keeps ten bits of what goes into a matrix product.
TF32 = 2.0**-10
# Where a repetition begins to differ by this much it is not rounding: dropout, or other random numbers.
RANDOM = 0.01
HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class Options:
    """How to compare."""

    steps: int = STEPS
    draws: int = DRAWS
    given: Mapping[str, Any] | None = None
    """The map file: name in B -> name in A, a list of names in A, or null."""
    reproduce: str = ""


def compare_sides(
    a: PatientSide | ScriptSide | Path,
    b: PatientSide | ScriptSide | Path,
    options: Options | None = None,
) -> Answer:
    """A is trusted. A Path is a dump folder."""
    from traindoctor.tracing.script import ScriptSide

    options = options or Options()
    with tempfile.TemporaryDirectory(prefix="traindoctor-compare-") as scratch:
        folder = Path(scratch)
        if isinstance(a, ScriptSide) or isinstance(b, ScriptSide):
            return _of_scripts(a, b, folder, options)
        if isinstance(a, Path):
            trace_a, trace_b = _beside_dump(a, b, folder, options)
            draws = _dumped_draws(a, trace_a)
        else:
            trace_a, trace_b, measured = _from_function(a, b, folder, options)
            draws = measured
        return _judged(trace_a, trace_b, draws, options)


def _judged(a: Trace, b: Trace, draws: Draws, options: Options) -> Answer:
    aligned = align(a, b, options.given)
    notes = _unknown_names(b, options)
    for side, trace in (("A", a), ("B", b)):
        if trace.steps < options.steps:
            notes.append(
                f"{side} has {trace.steps} of the {options.steps} steps that were asked for"
            )
    notes += _other_grounds(a, b)
    coarsest = _coarsest((a, b))
    same, last = _equal_bits(aligned)
    # In half precision what rounding does over a whole step hides too much: it counts from where the sides differ at all.
    start = last if coarsest in HALF and last in a.by_key else None
    found: list[Mapping[Key, Distance]] = [] if same else draws.make(coarsest, start)
    if not same and not found:
        notes.append(
            "the tolerance is estimated from the dtypes, not measured: A is a dump without perturbed ones beside it "
            "(docs/dump-format.md)"
        )
    if draws.repeated and found:
        # Sums in another order (atomics on a GPU) begin with a difference of rounding's size.
        begins = next((item for item in found[0].items() if item[1].whole), None)
        if begins is not None and begins[1].whole > RANDOM:
            kind, _, name = begins[0]
            notes.append(
                f"A differs from itself when it is run again, from the {kind} {name!r} on: it draws random numbers "
                "(dropout?) that the seed does not settle; switch them off to compare"
            )
    tolerance = Tolerance(largest(found), len(found), draws.repeated, coarsest)
    return answer(aligned, tolerance, notes=notes, reproduce=options.reproduce)


def _of_scripts(a: Any, b: Any, folder: Path, options: Options) -> Answer:
    """Scripts make their own weights and batches: nothing of the other side's is given to them."""
    from traindoctor.tracing.script import OfScript, ScriptSide
    from traindoctor.tracing.script_ranks import side_by_side

    for side in (a, b):
        if not isinstance(side, (ScriptSide, Path)):
            raise TraindoctorError(
                f"{side.title} is a function and the other side a script: give two functions or two scripts"
            )
    ranks = [
        side.run(folder / name, options.steps)
        if isinstance(side, ScriptSide)
        else [read_dump(side)]
        for side, name in ((a, "a"), (b, "b"))
    ]
    trace_a, trace_b, notes = side_by_side(*ranks, steps=options.steps)
    draws: Draws
    if isinstance(a, Path):
        draws = _dumped_draws(a, trace_a)
    else:
        tf32 = trace_b.settings.get("tf32") or trace_a.settings.get("tf32")
        own = _coarsest((trace_a,))
        draws = OfScript(
            a, trace_a, folder, options.steps, options.draws, own, TF32 if tf32 else 0.0
        )
    found = _judged(trace_a, trace_b, draws, options)
    first = found.first.entry if found.first is not None else None
    if first is not None and first.kind == "weight" and first.step == 0:
        notes.append(
            "the two scripts begin with other weights: give both the same seed or checkpoint"
        )
    return replace(found, notes=(*notes, *found.notes))


class Draws(Protocol):
    """What rounding does to A, made when it is needed."""

    repeated: bool

    def make(self, coarsest: str, start: Key | None = None) -> list[Mapping[Key, Distance]]: ...


@dataclass
class OfDumps:
    """Dumps of perturbed runs beside the first."""

    folders: Sequence[Path]
    trace: Trace
    repeated = False

    def make(self, coarsest: str, start: Key | None = None) -> list[Mapping[Key, Distance]]:
        found: list[Mapping[Key, Distance]] = []
        for folder in self.folders:
            other = read_dump(folder).by_key
            found.append(
                {
                    entry.key: distance(entry.values(), other[entry.key].values())
                    for entry in self.trace.entries
                    if entry.key in other
                    and entry.shape == other[entry.key].shape
                    and entry.values().dtype.kind == "f"
                }
            )
        return found


@dataclass
class OfFunction:
    """A run again: once as it is, then perturbed."""

    side: PatientSide
    trace: Trace
    steps: int
    count: int
    weights: Mapping[str, Any] | None
    batches: Any
    products: float
    repeated = True

    def make(self, coarsest: str, start: Key | None = None) -> list[Mapping[Key, Distance]]:
        from traindoctor.tracing.sinks import SpreadSink

        own = _coarsest((self.trace,))
        coarse = EPS[coarsest] if EPS[coarsest] > EPS[own] else 0.0
        found: list[Mapping[Key, Distance]] = []
        for draw in range(self.count + 1):
            sink = SpreadSink(self.trace)
            self.side.run(
                sink,
                self.steps,
                weights=self.weights,
                batches=self.batches,
                moved=draw or None,
                coarse=coarse,
                products=self.products,
                start=start,
            )
            found.append(sink.distances)
        return found


def _dumped_draws(folder: Path, trace: Trace) -> Draws:
    return OfDumps(sorted(p for p in folder.glob("perturbed-*") if is_dump(p)), trace)


def _from_function(
    a: PatientSide, b: PatientSide | Path, folder: Path, options: Options
) -> tuple[Trace, Trace, Draws]:
    """A is run, on the weights and batches of B where B is a dump; else B is run on those of A."""
    weights, batches, steps = None, None, options.steps
    trace_b: Trace | None = None
    if isinstance(b, Path):
        trace_b = read_dump(b)
        steps = min(steps, trace_b.steps)
        weights, batches = _of_dump(trace_b, a.shapes(), options, to="a")
    trace_a, facts = _traced(a, folder / "a", steps, weights, batches)
    if trace_b is None:
        assert not isinstance(b, Path)
        given = _weights_for(facts, b.shapes(), options)
        trace_b, facts_b = _traced(b, folder / "b", steps, given, facts.batches)
        products = TF32 if facts_b.settings["tf32"] or facts.settings["tf32"] else 0.0
    else:
        products = TF32 if facts.settings["tf32"] else 0.0
    draws = OfFunction(a, trace_a, steps, options.draws, weights, batches, products)
    return trace_a, replace(trace_b, entries=_up_to(trace_b, steps)), draws


def _up_to(trace: Trace, steps: int) -> tuple[Any, ...]:
    return tuple(entry for entry in trace.entries if entry.step < steps)


def _beside_dump(
    a: Path, b: PatientSide | Path, folder: Path, options: Options
) -> tuple[Trace, Trace]:
    trace_a = read_dump(a)
    if isinstance(b, Path):
        return trace_a, read_dump(b)
    steps = min(options.steps, trace_a.steps)
    weights, batches = _of_dump(trace_a, b.shapes(), options, to="b")
    trace_b, _ = _traced(b, folder / "b", steps, weights, batches)
    return replace(trace_a, entries=_up_to(trace_a, steps)), trace_b


def _traced(
    side: PatientSide, folder: Path, steps: int, weights: Any, batches: Any
) -> tuple[Trace, Facts]:
    from traindoctor.tracing.sinks import DumpSink

    with DumpWriter(folder) as writer:
        facts = side.run(DumpSink(writer), steps, weights=weights, batches=batches)
    return replace(read_dump(folder), title=side.title, settings=facts.settings), facts


def _weights_for(
    facts: Facts, shapes_b: Mapping[str, tuple[int, ...]], options: Options
) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {}
    held = {
        name: tensor.numpy() if tensor.dtype != torch.bfloat16 else tensor.float().numpy()
        for name, tensor in facts.weights.items()
    }
    for match in match_weights(facts.shapes, shapes_b, options.given):
        for name, value in converted(match, held, shapes_b, to="b").items():
            found[name] = torch.from_numpy(np.ascontiguousarray(value))
    return found


def _of_dump(
    trace: Trace, shapes: Mapping[str, tuple[int, ...]], options: Options, *, to: str
) -> tuple[dict[str, Any] | None, Any]:
    """Weights and batches that a dump begins with, for a function on the other side."""
    import torch

    held = {e.name: np.array(e.read()) for e in trace.of_kind("weight", 0) if e.rows is None}
    dumped = {name: shape for name, shape in weight_shapes(trace).items() if name in held}
    of_a, of_b = (shapes, dumped) if to == "a" else (dumped, shapes)
    found: dict[str, Any] = {}
    for match in match_weights(of_a, of_b, options.given):
        for name, value in converted(match, held, shapes, to=to).items():
            found[name] = torch.from_numpy(np.ascontiguousarray(value))
    batches = []
    for step in range(trace.steps):
        inputs = [e for e in trace.of_kind("input", step) if e.rows is None]
        if inputs:
            batches.append([torch.from_numpy(np.array(e.read())) for e in inputs])
    return found or None, batches or None


def _coarsest(traces: Iterable[Trace]) -> str:
    """The dtype with the fewest bits that anything was computed in."""
    seen = {
        entry.dtype
        for trace in traces
        for entry in trace.entries
        if entry.kind in ("activation", "gradient", "weight") and entry.dtype in EPS
    }
    return max(seen, key=lambda name: EPS[name], default="float32")


def _other_grounds(a: Trace, b: Trace) -> list[str]:
    """Another torch or another device under the two sides: worth knowing beside any difference."""
    found = []
    for name, words in (("torch", "torch {}"), ("device", "the device {}")):
        first, second = a.settings.get(name), b.settings.get(name)
        if first and second and first != second:
            found.append(f"A ran with {words.format(first)}, B with {words.format(second)}")
    return found


def _unknown_names(b: Trace, options: Options) -> list[str]:
    """Of the map file: names that B does not have are mistyped."""
    known = {entry.name for entry in b.entries}
    return [f"map file: B has no {name!r}" for name in options.given or {} if name not in known]


def _equal_bits(aligned: Aligned) -> tuple[bool, Key | None]:
    """Whether all that both have is the same to the last bit, and the tensor behind which the first difference arises.

    Weights, their gradients and their updates are looked at together, when all are there: where some differ, what went
    before all of them is the last that is known to be equal. A few equal numbers (a loss) may be equal by chance.
    """
    weights = {entry.name for entry in aligned.a.of_kind("weight")}
    last: Key | None = None
    before = last  # behind all that was made in one go with the entry at hand
    at_once: tuple[str, int] | None = None
    for entry in aligned.a.entries:
        other = aligned.b.by_key.get(entry.key)
        if other is None:
            continue
        one_go = entry.kind in ("weight", "update") or entry.name in weights
        made = (entry.kind, entry.step) if one_go else None
        if made != at_once or made is None:
            at_once, before = made, last
        first, second = entry.read(), other.read()
        nan = first.dtype.kind == "f" and second.dtype.kind == "f"
        if first.shape != second.shape or not np.array_equal(first, second, equal_nan=nan):
            return False, before
        if one_go or entry.size >= FEWEST:
            last = entry.key
    return True, last


def read_map(file: Path) -> dict[str, Any]:
    """The map file: a JSON object of names in B."""
    from traindoctor.plain_files import read_json

    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise TraindoctorError(f"the map file {file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise TraindoctorError(f"the map file {file} must be a JSON object: name in B -> name in A")
    return found
