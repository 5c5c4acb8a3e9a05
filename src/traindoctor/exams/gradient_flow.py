"""Exam: do all trainable parameters that shape the loss get a gradient, and if not, where does it stop?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import TooEarly, exam, no_tape
from traindoctor.experiment.at_rest import no_gradient, trained
from traindoctor.experiment.patient import Patient
from traindoctor.graph.cancelled import cancelled
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import PASSING_ON, STOPPING_GRADIENTS
from traindoctor.tape.ops import PARAMETER, Escape, Op, Ref
from traindoctor.tape.tape import StepTape

MAX_NAMES = 12
# Weights that start at zero have moved by this step: what they let through is no longer exactly 0.
SETTLED = 2
# Whole tensors leave torch by these, to be worked on elsewhere.
ARRAYS = frozenset({"numpy", "tolist", "__array__", "__dlpack__"})


@exam(name="gradient_flow", title="Which parameters get a gradient", cost=5)
def gradient_flow(patient: Patient) -> Mapping[str, Any]:
    """`blocked`: trainable parameters without gradient on every taped step, though the loss moves with them."""
    tapes = [tape for tape in patient.tapes.values() if tape.roots]
    if not tapes:
        raise no_tape(patient)
    # What one optimizer's loss does not reach, another one's may; a stage that is over will not any more.
    tape, begun = tapes[-1], min(tape.step for tape in tapes)
    every = [t for t in patient.every_tape.values() if t.roots and (t in tapes or t.step > begun)]
    if not math.isfinite(tape.loss):
        raise ReplayError("the loss is not finite")
    if all(root.ref is None for root in tape.roots):
        return severed(patient, tape)
    # An optimizer over copies (master weights) holds none of them: then all are meant to learn.
    meant = trained(patient) & set(tape.parameters)
    silent = [
        name
        for name in tape.parameters
        if all(no_gradient(t.fresh.get(name)) for t in every) and (not meant or name in meant)
    ]
    teaching = teachers(patient, tape, silent, begun)
    silent = [name for name in silent if name not in teaching]
    if tape.gaps and silent:  # where every parameter has its gradient, nothing needs to be replayed
        raise ReplayError(tape.gaps[0])
    on_tape = [name for name in tape.parameters if not meant or name in meant]
    through = replay(tape, gradients=True, look_through=True).gradients() if silent else {}
    hidden = [name for name in silent if not no_gradient(through.get(name))]
    dark = [name for name in silent if name not in hidden]
    too_small = rounded_away(tape, dark)
    dark = [name for name in dark if name not in too_small]
    reached = {name for t in every for name, gradient in t.fresh.items() if gradient is not None}
    early = tape.step < SETTLED
    # Where the answer would be "too early" for each of them, nobody needs to know which.
    # Where no parameter has any gradient, no step will change that.
    whole = len(dark) == len(on_tape)
    asked = whole or not (early and reached.issuperset(dark))
    alone, together = values_that_matter(tape, dark, one_by_one=asked)
    moving, only_together = hidden + alone, together and whole
    if moving and early and reached.issuperset(moving):
        raise TooEarly("weights that start at zero let no gradient through at the first steps")
    if dark and not moving and patient.asks_itself and tape.step == begun:
        raise TooEarly("what the model said without gradient before the step was not seen")
    passed = {} if moving or tape.gaps else one_path_of_several(tape)
    return {
        **passed,
        "step": tape.step,
        "begun": begun,
        "trainable": len(on_tape),
        "silent": len(silent),
        "blocked": len(moving),
        "names": (dark if only_together else moving)[:MAX_NAMES],
        "cuts": cuts(tape, moving),
        "left": [] if moving else left_torch(tape, dark)[:MAX_NAMES],
        "escapes": described(tape.escapes[:5]),
        "share_of_gradient": hidden_share(through, hidden),
        "in_optimizer": bool(meant),
        "missing": missing(patient, tape),
        "only_together": only_together,
        "cancelled": [] if silent or tape.gaps else cancelled(tape)[:MAX_NAMES],
    }


def teachers(patient: Patient, tape: StepTape, silent: list[str], begun: int) -> set[str]:
    """Of parameters without gradient: those that an earlier stage has trained, where no weight that learns works on what is
    made of them and cut off. The loss compares with it: they have learned, and teach."""
    before = [t for step, t in patient.every_tape.items() if step < begun and t.stage != tape.stage]
    known = {name for name in silent if any(not no_gradient(t.fresh.get(name)) for t in before)}
    if not known:
        return set()
    structure = Structure(tape)
    roots = [root.ref for root in tape.roots if root.ref is not None]
    reaching = [op for op in tape.needed(roots) if not set(op.inputs) & set(roots)]
    learning = [op for op in reaching if op.grad_enabled and any(map(tape.name_of, op.inputs))]
    worked_on = [
        ref
        for op in reaching
        if stops(op)
        for ref in op.outputs
        if ref is not None
        and any(structure.depends(given, ref) for later in learning for given in later.inputs)
    ]
    leaves = {name: tape.parameters[name].ref for name in known}
    return {n for n in known if not any(structure.depends(r, leaves[n]) for r in worked_on)}


def rounded_away(tape: StepTape, dark: list[str]) -> set[str]:
    """Nothing is cut where the very same graph in float64 has a gradient: the run's numbers could not hold it."""
    if not any(tape.fresh.get(name) is not None for name in dark):
        return set()
    exact = replay(tape, dtype=torch.float64, gradients=True).gradients()
    return {name for name in dark if not no_gradient(exact.get(name))}


def one_path_of_several(tape: StepTape) -> dict[str, Any]:
    """Every tensor gets a gradient, but not by every way: how much of the whole gradient the cuts take."""
    roots = [root.ref for root in tape.roots if root.ref is not None]
    structure = Structure(tape)
    found = [op for op in tape.needed(roots) if stops(op) in ("detach", ".data", "no_grad")]
    found = [op for op in found if fed_on(structure, op, roots)]
    if not found:
        return {}
    through = replay(tape, gradients=True, look_through=set(found)).gradients()
    own = replay(tape, gradients=True).gradients()
    lost = whole = 0.0
    for name, gradient in through.items():
        if gradient is not None:
            mine = own.get(name)
            rest = gradient if mine is None else gradient - mine
            lost += float(rest.double().square().sum())
            whole += float(gradient.double().square().sum())
    first = found[0]
    return {
        "partial": math.sqrt(lost / whole) if whole else 0.0,
        "partial_kind": stops(first),
        "partial_line": first.nearest_line,
        "partial_module": first.module,
    }


def fed_on(structure: Structure, op: Op, roots: Sequence[Ref]) -> bool:
    """Its result is worked on by weights on the way to the loss; what is only added (a straight-through estimator)
    or compared with (a target) is cut on purpose."""
    queue = [ref for ref in op.outputs if ref is not None]
    for made in queue:
        if not any(structure.depends(root, made) for root in roots):
            continue
        for user in structure.users.get(made, ()):
            if any(structure.tape.name_of(ref) is not None for ref in user.inputs):
                return True
            if user.kind in PASSING_ON:
                queue += [ref for ref in user.outputs if ref is not None and ref not in queue]
    return False


def left_torch(tape: StepTape, silent: list[str]) -> list[str]:
    """Of parameters without gradient: those whose value is taken out of torch inside of the model (`.numpy()`)."""
    ways = [e for e in tape.escapes if e.function in ARRAYS and e.module is not None]
    if not ways or not silent:
        return []
    structure = Structure(tape)
    leaves = {name: tape.parameters[name].ref for name in silent}
    return [
        name
        for name, leaf in leaves.items()
        if any(
            structure.depends(ref, leaf)
            for way in ways
            for ref in way.values
            if math.prod(structure.shape(ref)) > 1
        )
    ]


def described(escapes: Sequence[Escape]) -> list[dict[str, Any]]:
    return [{"function": e.function, "line": e.line, "module": e.module} for e in escapes]


def severed(patient: Patient, tape: StepTape) -> dict[str, Any]:
    """Backward is called on a tensor that was made anew: `torch.tensor(loss.item(), requires_grad=True)`."""
    meant = trained(patient)
    names = [name for name in tape.parameters if not meant or name in meant]
    if not names or not tape.escapes:
        raise ReplayError("backward was called on something computed outside of the step")
    return {
        "step": tape.step,
        "trainable": len(names),
        "silent": len(names),
        "blocked": len(names),
        "names": names[:MAX_NAMES],
        "cuts": [],
        "left": [],
        "escapes": described(tape.escapes[-5:][::-1]),
        "share_of_gradient": 1.0,
        "in_optimizer": bool(meant),
        "missing": [],
    }


def missing(patient: Patient, tape: StepTape) -> list[str]:
    """Trainable parameters of the model that the step does not use at all."""
    if patient.model is None:
        return []
    names = [patient.names.of(p) for p in patient.model.parameters() if p.requires_grad]
    return [name for name in dict.fromkeys(names) if name not in tape.parameters][:MAX_NAMES]


def hidden_share(gradients: Mapping[str, Tensor | None], hidden: Iterable[str]) -> float:
    """How much of the whole (looked-through) gradient the blocked parameters would have."""
    hidden = set(hidden)
    total = part = 0.0
    for name, gradient in gradients.items():
        if gradient is not None:
            square = float(gradient.double().square().sum())
            total += square
            part += square if name in hidden else 0.0
    return math.sqrt(part / total) if total else 0.0


def values_that_matter(
    tape: StepTape, names: list[str], *, one_by_one: bool
) -> tuple[list[str], bool]:
    """Of parameters with no gradient at all: those whose value still moves the loss (argmax, numpy, item). And whether
    those that are zero only do so together: both factors of a product, so that neither has a gradient."""
    if not names:
        return [], False
    generator = torch.Generator().manual_seed(0)

    def moves(chosen: list[str]) -> bool:
        other = {}
        for name in chosen:
            value = tape.parameters[name].value
            noise = torch.randn(value.shape, generator=generator).to(value)
            other[name] = value + noise * (value.double().square().mean().sqrt() + 0.1).to(value)
        try:
            replayed = replay(tape, parameters=other)
        except ReplayError:
            return False
        changed = sum(float(root) for root in replayed.roots)
        return changed != sum(root.value for root in tape.roots)

    if not moves(names):
        return [], False
    if not one_by_one:
        return names, False
    alone = [name for name in names[:MAX_NAMES] if moves([name])]
    zero = [name for name in names if not tape.parameters[name].value.any()]
    return alone, not alone and len(zero) > 1 and moves(zero)


def cuts(tape: StepTape, blocked: list[str]) -> list[dict[str, Any]]:
    """The ops that stop the gradients of the blocked parameters, the one that stops most of them first."""
    if not blocked:
        return []
    roots = [root.ref for root in tape.roots if root.ref is not None]
    reaching = tape.needed(roots)
    behind: dict[int, set[str]] = {}
    for name in blocked:
        leaf = tape.parameters[name].ref
        behind.setdefault(tape.geometry[leaf.index].storage, set()).add(name)
    found: dict[tuple[str, str | None, str | None], set[str]] = {}
    for op in reaching:
        names = set().union(*(behind.get(tape.geometry[r.index].storage, set()) for r in op.inputs))
        if not names:
            continue
        kind = stops(op)
        if kind is not None:
            found.setdefault((kind, op.nearest_line, op.module), set()).update(names)
            if kind != "no_grad":
                continue
        for ref in (*op.outputs, *op.writes):
            if ref is not None:
                behind.setdefault(tape.geometry[ref.index].storage, set()).update(names)
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return [
        {"kind": kind, "line": line, "module": module, "parameters": len(names)}
        for (kind, line, module), names in ranked[:4]
    ]


def stops(op: Op) -> str | None:
    """How the op stops a gradient, None if it does not."""
    if not op.depends_on & PARAMETER or op.synthetic:
        return None
    if op.kind == "detach":
        return "detach" if op.name != "data" else ".data"
    if op.kind in STOPPING_GRADIENTS:
        return op.kind
    if op.function is None and not op.grad_enabled:
        return "no_grad"
    if op.function is not None and not op.function.differentiable:
        return op.function.name  # as a reentrant checkpoint whose input wants no gradient
    return None
