"""Exam: over which axes does each normalisation run, and do activations grow where there is none?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traindoctor.exams.base import NotApplicable, exam
from traindoctor.replay.ends import find_ends
from traindoctor.replay.ops import Op, Ref
from traindoctor.replay.structure import Structure

if TYPE_CHECKING:
    from traindoctor.replay.patient import Patient

BY_SHAPE = frozenset({"layer_norm", "rms_norm"})
BY_BATCH = frozenset({"batch_norm"})
BY_GROUP = frozenset({"group_norm", "instance_norm"})
BY_HAND = frozenset({"var", "std", "var_mean", "std_mean", "mean"})
# RMSNorm by hand: the root of a mean of squares
ROOTS = frozenset({"rsqrt", "sqrt"})


@exam(name="normalisation", title="Axes of normalisation, growth of activations", cost=2)
def normalisation(patient: Patient) -> Mapping[str, Any]:
    """`norms`: each with the axes ('batch', 'time', 'feature') it runs over; `growth` of the residual stream."""
    tape = patient.tape
    assert tape is not None
    structure = Structure(tape)
    ends = [e for e in find_ends(tape, structure) if e.layout is not None]
    if not ends or ends[0].layout is None:
        raise NotApplicable("no loss with known targets hangs on a look-up of tokens in rows")
    axis, rows, _ = ends[0].layout
    length = ends[0].index.shape[axis]
    rms_by_hand = sum(mean_under_root(structure, op) is not None for op in tape.ops)
    norms = []
    for op in tape.needed([ends[0].loss.logits]):
        mean = mean_under_root(structure, op)
        op = mean or op
        source = next((r for r in op.inputs if structure.of_data(r)), None)
        if source is None or op.segment:
            continue
        dims = normalised_dims(op, len(structure.shape(source)), under_root=mean is not None)
        if dims is None:
            continue
        shape = structure.shape(source)
        norms.append(
            {
                "op": op.name,
                "axes": sorted({meaning(shape, dim, rows, length) for dim in dims}),
                "shape": list(shape),
                "module": op.module,
                "line": op.line,
            }
        )
    sums = [(op, op.outputs[0]) for op, _, _ in structure.additions if op.segment == 0]
    wanted = [ref for _, ref in sums if ref is not None]
    replay = tape.replay(want=wanted) if wanted else None
    sizes = (
        [float(replay[r].detach().float().square().mean().sqrt()) for r in wanted] if replay else []
    )
    return {
        "norms": norms,
        "rms_by_hand": rms_by_hand,
        "attentions": len([a for a in structure.attentions if a.op.segment == 0]),
        "growth": sizes[-1] / sizes[0] if len(sizes) > 1 and sizes[0] > 0 else None,
        "sizes": sizes[:64],
        "step": tape.step,
    }


def normalised_dims(op: Op, ndim: int, *, under_root: bool) -> list[int] | None:
    """The dimensions whose statistics are taken, or None for an op that normalises nothing."""
    if op.name in BY_SHAPE:
        given = op.kwargs.get("normalized_shape", op.args[1] if len(op.args) > 1 else ())
        count = len(given) if isinstance(given, tuple | list) else 1
        return list(range(ndim - count, ndim))
    if op.name in BY_BATCH:
        training = op.kwargs.get("training", op.args[5] if len(op.args) > 5 else False)
        return [dim for dim in range(ndim) if dim != 1] if training is True else None
    if op.name in BY_GROUP:
        return list(range(1, ndim))
    if op.name in BY_HAND:
        if op.name == "mean" and not under_root:
            return None  # pooling, a loss
        dim = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else None)
        if isinstance(dim, int) and not isinstance(dim, bool):
            return [dim % ndim] if ndim else None
        if isinstance(dim, tuple | list):
            return [d % ndim for d in dim]
    return None


def meaning(shape: tuple[int, ...], dim: int, rows: int, length: int) -> str:
    """What a dimension is, where its size tells it apart from the others; '?' where it does not."""
    size = shape[dim]
    if list(shape).count(size) > 1 or (rows == length and size == rows):
        if dim == len(shape) - 1:
            return "feature"
        return "?"
    if size == rows:
        return "batch"
    if size == length:
        return "time"
    return "feature"


def mean_under_root(structure: Structure, op: Op) -> Op | None:
    """RMSNorm by hand: the mean of squares that a root is taken of."""
    source = next((a for a in op.args if isinstance(a, Ref)), None)
    if op.name not in ROOTS or source is None:
        return None
    for above in structure.up(source):
        if above.name == "mean":
            return above
        if above.name not in (
            "add",
            "__add__",
            "__radd__",
            "add_",
            "clamp",
            "clamp_min",
            "to",
            "float",
        ):
            return None
    return None
