"""Exam: the step's loss and gradients in each precision against float64, layer by layer."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.tape.compare import compare_all
from traindoctor.tape.execute import replay, visit
from traindoctor.tape.ops import Op
from traindoctor.tape.tape import StepTape

RUNGS = (torch.float32, torch.bfloat16, torch.float16)
NUM_LAYERS = 8
# The product that tells how fast a precision is here: a millisecond in float32.
SIDE = 256


@exam_of_tape(name="precision_ladder", title="Loss and gradients by precision", cost=12)
def precision_ladder(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`rungs`: relative error of loss and gradient per dtype, the worst layers, where it overflows."""
    exact = replay(tape, dtype=torch.float64, gradients=True)
    loss = float(exact.loss.detach())
    reference = exact.gradients()
    if not math.isfinite(loss):
        raise ReplayError("the loss is not finite in float64 either")
    own, layers = compare_all(tape.fresh, reference)
    return {
        "step": tape.step,
        "weights": weights(tape),
        "loss": loss,
        "own": {"gradient": own, "layers": worst(layers)},
        "rungs": rungs(tape, loss, reference, patient.seconds),
    }


def rungs(
    tape: StepTape, loss: float, reference: Mapping[str, Tensor | None], seconds: float
) -> dict[str, Any]:
    """float32 first: its time tells what the others would take."""
    deadline = time.perf_counter() + seconds
    found: dict[str, Any] = {}
    single = 0.0
    for dtype in RUNGS:
        left = deadline - time.perf_counter()
        if found and single * slowness(dtype, tape) > left:
            found[name(dtype)] = {"refused": f"there is no time for {name(dtype)} on this machine"}
            continue
        began = time.perf_counter()
        found[name(dtype)] = rung(tape, dtype, loss, reference)
        single = single or time.perf_counter() - began
    return found


def slowness(dtype: torch.dtype, tape: StepTape) -> float:
    """How many times longer than float32 a product takes: a CPU without units for half precision emulates them."""
    device = next((leaf.value.device for leaf in tape.parameters.values()), torch.device("cpu"))
    if device.type != "cpu":
        return 1.0
    times = []
    for kind in (torch.float32, dtype):
        a = torch.ones(SIDE, SIDE, dtype=kind)
        a @ a  # the first one sets things up
        began = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - began)
    return max(1.0, times[1] / max(times[0], 1e-9))


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def weights(tape: StepTape) -> str:
    """The dtype that most weights have."""
    counted = Counter(name(leaf.value.dtype) for leaf in tape.parameters.values())
    return counted.most_common(1)[0][0] if counted else "none"


def rung(
    tape: StepTape, dtype: torch.dtype, loss: float, reference: Mapping[str, Tensor | None]
) -> dict[str, Any]:
    try:
        replayed = replay(tape, dtype=dtype, gradients=True)
        gradients = replayed.gradients()
        whole, layers = compare_all(gradients, reference)
        value = float(replayed.loss.detach())
        if not math.isfinite(value):
            overflow = first_overflow(tape, dtype)
        else:
            overflow = backward_overflow(gradients)
    except ReplayError as reason:
        return {"refused": str(reason)}
    scale = abs(loss) or 1.0
    return {
        "loss": abs(value - loss) / scale if math.isfinite(value) else None,
        "gradient": whole if math.isfinite(whole) else None,
        "layers": worst(layers),
        "overflow": overflow,
    }


def worst(layers: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": part.name,
            "difference": part.difference if math.isfinite(part.difference) else None,
        }
        for part in layers[:NUM_LAYERS]
    ]


def backward_overflow(gradients: Mapping[str, Tensor | None]) -> dict[str, Any] | None:
    """The parameter nearest to the loss whose gradient is not finite: the tape meets parameters in forward order."""
    for parameter, gradient in reversed(list(gradients.items())):
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            return {"op": "backward", "line": None, "module": parameter}
    return None


def first_overflow(tape: StepTape, dtype: torch.dtype) -> dict[str, Any] | None:
    """The first op whose result is infinite or NaN in that precision; masks of -inf are none."""
    found: list[dict[str, Any]] = []

    def look(op: Op, inputs: Any, outputs: Sequence[Tensor]) -> bool:
        for out in outputs:
            if out.is_floating_point() and bool((torch.isnan(out) | (out == math.inf)).any()):
                found.append({"op": op.name, "line": op.line, "module": op.module})
                return True
        return False

    visit(tape, look, dtype=dtype)
    return found[0] if found else None
