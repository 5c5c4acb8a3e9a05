"""What an exam is: an active test on a replay, with a known right answer and a noise estimate."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from traindoctor.errors import ReplayError, in_a_sentence
from traindoctor.experiment.patient import Patient
from traindoctor.graph.ends import Ends
from traindoctor.graph.input_sites import asks_for_tokens, input_sites
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.ground.collective import OTHERS_FIXED
from traindoctor.ground.watchdog import Overdue, limited
from traindoctor.record import ExamResult
from traindoctor.tape.tape import StepTape


class NotApplicable(Exception):
    """The step has nothing that the exam could test; the message is the reason, in one sentence."""


class NotPossible(Exception):
    """There is something to test, and it cannot be; the message is the reason, in one sentence."""


class TooEarly(NotPossible):
    """A later step will tell; where none comes, the test was not made."""


def no_tape(patient: Patient) -> NotPossible:
    """With the reason of the first step that was tried, where any was."""
    for reason in patient.refusals.values():
        return NotPossible(f"no step could be repeated: {reason}")
    return NotPossible("no step could be repeated")


@dataclass(frozen=True)
class Exam:
    """One test. `cost` is a first guess in training steps' time; the doctor learns the real one.

    `least` is what it can be cut down to where `patient.seconds` are short.
    """

    name: str
    title: str
    cost: float
    perform: Callable[[Patient], Mapping[str, Any]]
    needs_tape: bool = True
    least: float | None = None

    def __call__(self, patient: Patient) -> ExamResult:
        """Never raises for a patient that cannot be examined: that is a result, with its reason."""
        begin = time.perf_counter()
        step = patient.step
        try:
            if self.needs_tape and patient.tape is None:
                raise no_tape(patient)
            # Torch warns of what a replay does (bf16 on a CPU without it) and the script does not.
            with patient.undisturbed():
                # The innermost: all that is given back is given back when nothing can be interrupted any more.
                values = limited(
                    lambda: self.perform(patient),
                    seconds=patient.hard_seconds,
                    host_bytes=patient.hard_host_bytes,
                    device_bytes=patient.hard_device_bytes,
                )
            if any(tape.conditional for tape in patient.tapes.values()):
                values = {**values, "given": OTHERS_FIXED}
            return ExamResult(self.name, step, "done", values, "", time.perf_counter() - begin)
        except Overdue as overdue:
            took = time.perf_counter() - begin
            patient.stopped[self.name] = text = f"stopped after {took:.1f} s: {overdue}"
            return ExamResult(self.name, step, "refused", {"stopped": True}, text, took)
        except (NotApplicable, NotPossible, ReplayError) as error:
            took = time.perf_counter() - begin
            reason: Exception = error
            if patient.tape is not None and patient.tape.gaps:
                reason = NotPossible(patient.tape.gaps[0])  # what was not seen is not absent
            if isinstance(reason, NotApplicable):
                return ExamResult(self.name, step, "not-applicable", {}, str(reason), took)
            early = {"too_early": True} if isinstance(reason, TooEarly) else {}
            return ExamResult(self.name, step, "refused", early, str(reason), took)
        except Exception as error:  # the border between the user's run and our tests
            text = in_a_sentence(error)
            return ExamResult(self.name, step, "failed", {}, text, time.perf_counter() - begin)


def exam(
    *, name: str, title: str, cost: float, needs_tape: bool = True, least: float | None = None
) -> Callable[[Callable[[Any], Mapping[str, Any]]], Exam]:
    """Makes an Exam of a function of the patient. The table in exams/__init__.py lists them."""

    def build(perform: Callable[[Any], Mapping[str, Any]]) -> Exam:
        return Exam(name, title, cost, perform, needs_tape, least)

    return build


def exam_of_tape(
    *, name: str, title: str, cost: float, first: bool = False, least: float | None = None
) -> Callable[[Callable[[Patient, StepTape], Mapping[str, Any]]], Exam]:
    """The same of a function of the patient and its latest tape, or its `first` one."""

    def build(perform: Callable[[Patient, StepTape], Mapping[str, Any]]) -> Exam:
        @wraps(perform)
        def on_tape(patient: Patient) -> Mapping[str, Any]:
            tape = patient.first_tape if first else patient.tape
            assert tape is not None
            return perform(patient, tape)

        return Exam(name, title, cost, on_tape, least=least)

    return build


def nothing_beside_tokens(tape: StepTape, ends: Sequence[Ends]) -> NotApplicable | NotPossible:
    """Why no loss stands beside rows of tokens. `ends`: what was found, none of it of the kind that is asked for."""
    rows = [
        s
        for s in input_sites(tape)
        if s.kind == "data" and s.index is not None and s.index.ndim > 1
    ]
    if not rows:
        return NotApplicable("the model does not take rows of tokens")
    if not loss_sites(tape):
        if not asks_for_tokens(tape):
            return NotApplicable("no loss has tokens as targets")
        return NotPossible("the targets cannot be read from the hand-written loss")
    if ends and all(e.contrastive for e in ends):
        return NotApplicable("the loss compares the examples of a batch with each other")
    if ends:
        return NotApplicable("the targets are not one token per position")
    return NotPossible("no loss with known targets depends on the input tokens")
