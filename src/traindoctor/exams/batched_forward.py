"""Would the examples of a step be faster as one batch? Timed on a copy of the model."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from traindoctor.exams.base import NotApplicable, NotPossible, exam
from traindoctor.experiment.patient import Patient
from traindoctor.graph.origins import walk_back
from traindoctor.ground.hooks_aside import has_hooks
from traindoctor.ground.names import SHARDED, sharded
from traindoctor.ground.nested import tensors_in
from traindoctor.tape.tape import StepTape

# Rounds of both kinds, in turn: the machine's load hits them alike. The first is for warming up.
ROUNDS = 6
# A copy of a larger model would not be held only to time it.
MOST_BYTES = 2 * 2**30
# Arguments of one call of the model, by place and by name.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@exam(
    name="batched_forward",
    title="Examples one by one against the same examples as one batch",
    cost=14.0,
    needs_tape=False,
)
def batched_forward(patient: Patient) -> Mapping[str, Any]:
    """`gain`: seconds one by one over seconds as a batch, the median of paired rounds; `noise`: half their
    quartile distance."""
    kept = patient.facts.get("examples")
    if not kept:
        raise NotApplicable("no step calls the model once per example")
    called, calls = kept
    if sharded(called.parameters()):
        raise NotPossible(SHARDED)
    if sum(p.numel() * p.element_size() for p in called.parameters()) > MOST_BYTES:
        raise NotPossible("the model is too large to be copied for a timing")
    if has_hooks(called):
        raise NotPossible("the model's hooks would be called again")
    if patient.tape is not None and decides(patient.tape):
        raise NotApplicable("what is sampled from one output decides the next input")
    batch = stacked(calls)
    model = copy.deepcopy(called)

    def one_by_one() -> None:
        for args, kwargs in calls:
            train_on(model, args, kwargs)

    ratios = []
    for number in range(ROUNDS):
        apart, together = seconds(one_by_one), seconds(lambda: train_on(model, *batch))
        if number:
            ratios.append(apart / together)
    ratios.sort()
    return {
        "gain": median(ratios),
        "noise": (ratios[-2] - ratios[1]) / 2,
        "examples": len(calls),
    }


def decides(tape: StepTape) -> bool:
    """More than once in the step a number that was drawn from what the model answers leaves torch: actions that go to
    an environment, whose next state is not there before."""
    drawn = 0
    for escape in tape.escapes:
        makers = [op for ref in escape.values for _, op in walk_back(tape, ref)]
        drawn += any(op is not None and op.rng for op in makers)
    return drawn > 1


def stacked(calls: Sequence[Call]) -> Call:
    """All examples as one call. Padded to one length, they cost no more than the longest one so many times."""
    shapes = {tuple(x.shape for x in tensors_in(call)) for call in calls}
    if len(shapes) > 1:
        longest = max(calls, key=lambda call: sum(x.numel() for x in tensors_in(call)))
        calls = [longest] * len(calls)
    first_args, first_kwargs = calls[0]

    def joined(values: list[Any]) -> Any:
        return torch.cat(values) if isinstance(values[0], torch.Tensor) else values[0]

    args = tuple(joined([call[0][place] for call in calls]) for place in range(len(first_args)))
    return args, {key: joined([call[1][key] for call in calls]) for key in first_kwargs}


def train_on(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward and backward of any scalar made of the output: the time is what is asked for."""
    with torch.enable_grad():
        output = model(*args, **kwargs)
        outputs = [x for x in tensors_in(output) if x.requires_grad]
        if not outputs:
            raise NotPossible("the model's output has no gradient")
        torch.autograd.backward([x.float().sum() for x in outputs[:1]])
    model.zero_grad()


def seconds(work: Callable[[], None]) -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - began
