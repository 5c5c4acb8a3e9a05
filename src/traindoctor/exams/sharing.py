"""Exam: parameters that do the work of several layers."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.structure import Structure
from traindoctor.tape.operators import NO_PRODUCT
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape


@exam_of_tape(name="sharing", title="Parameters used at several depths", cost=1)
def sharing(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`listed`: modules that stand several times in one list; `copied`: those that share all they hold with another;
    `reused`: parameters used again above themselves."""
    if patient.model_is_gone:
        raise NotPossible("the model was deleted before it could be examined")
    reused = reused_parameters(tape)
    hidden = [name for name in tape.parameters if tape.parameters[name].value.ndim >= 2]
    if not hidden:
        raise NotApplicable("the step has no weight matrix")
    return {
        "listed": [] if patient.model is None else listed_twice(patient, reused),
        "copied": [] if patient.model is None else shallow_copies(patient.model),
        "tied": [] if patient.model is None else tied_parameters(patient.model),
        "aliased": [] if patient.model is None else aliased(patient.model, tape, patient),
        "reused": reused,
        "matrices": len(hidden),
    }


def listed_twice(patient: Patient, reused: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same module object under several numbers of one ModuleList or Sequential: `[Block()] * 6`."""
    model, names_of = patient.model, patient.names.of
    assert model is not None
    in_depth = {row["parameter"] for row in reused}
    found = []
    for path, parent in model.named_modules(remove_duplicate=True):
        if not isinstance(parent, nn.ModuleList | nn.Sequential):
            continue
        places: dict[nn.Module, list[str]] = {}
        for name, child in parent._modules.items():
            if child is not None and any(True for _ in child.parameters()):
                places.setdefault(child, []).append(f"{path}.{name}" if path else name)
        found += [
            {
                "modules": names[:8],
                "times": len(names),
                "of": len(parent._modules),
                "in_depth": any(names_of(p) in in_depth for p in child.parameters()),
            }
            for child, names in places.items()
            if len(names) > 1
        ]
    return found


def shallow_copies(model: nn.Module) -> list[dict[str, Any]]:
    """Modules of their own that were made by `copy.copy`: they hold one and the same table of children and weights."""
    names: dict[tuple[int, int], dict[int, str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if any(p.ndim >= 2 for p in module.parameters()):
            key = (id(module._parameters), id(module._modules))
            names.setdefault(key, {}).setdefault(id(module), path)
    groups = [list(same.values()) for same in names.values() if len(same) > 1]
    return [{"modules": same[:8], "times": len(same)} for same in groups][:8]


def aliased(model: nn.Module, tape: StepTape, patient: Patient) -> list[dict[str, Any]]:
    """One layer under several names of one parent (`self.key = self.query`), and used several times in a pass.

    Two towers that read two different inputs with the same weights are meant so (siamese networks).
    """
    structure = Structure(tape)
    found = []
    for path, parent in model.named_modules():
        if isinstance(parent, nn.ModuleList | nn.Sequential):
            continue
        names: dict[int, list[str]] = {}
        for name, child in parent._modules.items():
            if child is not None and not isinstance(child, nn.Embedding):
                names.setdefault(id(child), []).append(name)
        for same in names.values():
            child = parent._modules[same[0]]
            if len(same) < 2 or child is None:
                continue
            if all(p.ndim < 2 for p in child.parameters()):
                continue
            # What reads the common input first may be a norm of the layer, not its matrix.
            held = [patient.names.of(p) for p in child.parameters()]
            uses = [
                len(ops)
                for name in held
                if name in tape.parameters
                and joined(structure, ops := used_in(structure, tape.parameters[name].ref))
            ]
            if max(uses, default=0) > 1:
                found.append(
                    {"modules": [f"{path}.{n}" if path else n for n in same], "uses": max(uses)}
                )
    return found[:8]


def used_in(structure: Structure, weight: Ref) -> list[Op]:
    return [op for op in structure.users.get(weight, ()) if op.segment == 0]


def joined(structure: Structure, uses: list[Op]) -> bool:
    """Two uses of a weight read the same values, or one depends on the other."""
    reads = [{ref for ref in op.inputs if structure.of_data(ref)} for op in uses]
    for later in range(len(uses)):
        for earlier in range(later):
            made = [ref for ref in uses[earlier].outputs if ref is not None]
            if reads[later] & reads[earlier]:
                return True
            if any(structure.depends(ref, out) for ref in reads[later] for out in made):
                return True
    return False


def tied_parameters(model: nn.Module) -> list[list[str]]:
    """Matrices that stand under several names without their module being the same; a table and the head apart."""
    names: dict[int, list[str]] = {}
    kinds: dict[int, set[str]] = {}
    for path, module in model.named_modules():
        for name, value in module._parameters.items():
            if value is not None and value.ndim >= 2:
                names.setdefault(id(value), []).append(f"{path}.{name}" if path else name)
                kinds.setdefault(id(value), set()).add(
                    "table" if isinstance(module, nn.Embedding) else "layer"
                )
    return [found for key, found in names.items() if len(found) > 1 and "table" not in kinds[key]][
        :8
    ]


def reused_parameters(tape: StepTape) -> list[dict[str, Any]]:
    """Matrices used twice in one pass, the later use depending on the earlier one's result."""
    structure = Structure(tape)
    found = []
    for name, leaf in tape.parameters.items():
        if leaf.value.ndim < 2:
            continue
        uses = [
            op
            for op in structure.users.get(leaf.ref, ())
            if op.segment == 0 and op.kind not in NO_PRODUCT
        ]
        first = next((op.outputs[0] for op in uses if op.outputs), None)
        if len(uses) < 2 or first is None:
            continue
        deeper = sum(
            any(structure.depends(ref, first) for ref in op.inputs if ref != leaf.ref)
            for op in uses[1:]
        )
        table = any(op.kind == "embedding" for op in structure.users.get(leaf.ref, ()))
        if deeper and not table:
            found.append({"parameter": name, "uses": deeper + 1})
    return found[:24]
