"""Exams: modules alone, on their real inputs: is their gradient the derivative of what they compute?

The ops of a module's call are cut out of the tape and run in float64 with the inputs they had. Hand-written backward
passes are called as they are, so a wrong one shows in each module around it. `layers_alone` tests every module;
`guilty_module` goes down from the whole model, into what fails only, to the innermost that does.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from traindoctor.errors import ReplayError, in_a_sentence
from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.sections import Section, all_calls, as_function, first_calls
from traindoctor.numerics.finite_difference import own_gradient_test
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.tape import StepTape

# The whole exam stays below so many seconds of this thread; what is left untested is said.
SECONDS = 60.0
# Two directions find an error in any direction with certainty but for chance; the root exam takes four.
DIRECTIONS = 2


@exam_of_tape(
    name="layers_alone", title="Every module's gradient, alone", cost=400, first=True, least=20
)
def layers_alone(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`layers`: per module outcome, difference, noise and pattern; innermost first, `untested` when time was up."""
    require_faithful(tape)
    found = first_calls(tape)
    if not found:
        raise NotApplicable("the step calls no module with parameters or inputs of its own")
    deadline = time.thread_time() + min(SECONDS, patient.seconds)
    layers, untested = [], []
    for section in found:
        if time.thread_time() > deadline:
            untested.append(section.module)
            continue
        layers.append({"module": section.module, **examine(tape, section)})
    return {"layers": layers, "untested": untested, "step": tape.step}


# A level of the tree costs as much as the model at most, and the model about 30 steps: two directions of 30 to 70
# forward passes. A sound model is one level.
@exam_of_tape(
    name="guilty_module",
    title="Down to the innermost module that is wrong",
    cost=120,
    first=True,
    least=60,
)
def guilty_module(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`module` with `outcome`, `difference` and `noise`: the innermost one whose own gradient is wrong.

    `wrong` has all of them, the worst first, each with the hand-written backward passes it calls. Without a wrong one
    `module` is None and the outcome says whether all of the step was decided.
    """
    require_faithful(tape)
    pending = all_calls(tape)
    if not pending:
        raise NotPossible("no part of the step can be run by itself")
    deadline = time.thread_time() + min(SECONDS, patient.seconds)
    tested: list[tuple[Section, dict[str, Any]]] = []
    untested: list[Section] = []
    while pending:
        section = pending.pop(0)
        if lies_in(section, right(tested)):
            continue
        if time.thread_time() > deadline:
            untested.append(section)
            continue
        row = {"module": section.module, **examine(tape, section)}
        tested.append((section, {**row, "hand_written": section.hand_written}))
        if row["outcome"] == "wrong":
            # What lies inside is asked before its neighbours: where time is short, one name is better than none.
            pending.sort(key=lambda other: not other.numbers < section.numbers)
    found = named(tested) or decided(tested, untested)
    return {
        **found,
        "tested": len(tested),
        "untested": [section.module for section in untested],
        "step": tape.step,
    }


def examine(tape: StepTape, section: Section) -> dict[str, Any]:
    try:
        function, values = as_function(tape, section)
        test = own_gradient_test(function, values, num_directions=DIRECTIONS)
    except ReplayError as reason:
        return undecided(str(reason))
    except (RuntimeError, TypeError) as error:
        return undecided(in_a_sentence(error))
    if test is None:
        return undecided("no gradient passes it")
    return {
        "outcome": test.outcome,
        "difference": test.difference,
        "noise": test.noise,
        "pattern": test.pattern,
        "line": section.ops[-1].nearest_line,
    }


def undecided(reason: str) -> dict[str, Any]:
    return {"outcome": "undecided", "difference": None, "noise": None, "pattern": reason}


def right(tested: Sequence[tuple[Section, Mapping[str, Any]]]) -> list[Section]:
    return [section for section, row in tested if row["outcome"] == "pass"]


def lies_in(section: Section, others: Sequence[Section]) -> bool:
    return any(section.numbers <= other.numbers for other in others)


def named(tested: Sequence[tuple[Section, dict[str, Any]]]) -> dict[str, Any] | None:
    """The wrong ones in which nothing smaller is wrong, the largest difference first; None without one."""
    wrong = [(section, row) for section, row in tested if row["outcome"] == "wrong"]
    inner = [
        row
        for section, row in wrong
        if not any(other.numbers < section.numbers for other, _ in wrong)
    ]
    inner.sort(key=lambda row: -float(row["difference"]))
    return {**inner[0], "wrong": inner} if inner else None


def decided(
    tested: Sequence[tuple[Section, dict[str, Any]]], untested: Sequence[Section]
) -> dict[str, Any]:
    """Nothing is wrong: whether every op lies in something that passed, and by how much that differs at most."""
    sound = [row for _, row in tested if row["outcome"] == "pass"]
    covered = frozenset[int]().union(*(section.numbers for section in right(tested)))
    looked_at = [*(section for section, _ in tested), *untested]
    left = [section.module for section in looked_at if section.numbers - covered]
    worst = max(sound, key=lambda row: float(row["difference"]), default=undecided(""))
    return {
        **{key: worst[key] for key in ("difference", "noise", "pattern")},
        "module": None,
        "outcome": "undecided" if left else "pass",
        "wrong": [],
        "undecided": left,
    }
