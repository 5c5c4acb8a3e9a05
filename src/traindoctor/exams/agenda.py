"""Which exam is due, what it costs, and its performance: the doctor's book of exams."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from traindoctor.exams import EXAMS, load
from traindoctor.experiment.patient import Patient
from traindoctor.ground.memory import memory
from traindoctor.record import ExamResult
from traindoctor.record.stages import BY_STAGE, exam_and_stage

# A check may ask for an exam again, on a later step. Twice as far each time and some steps more, and not for ever.
MAX_ATTEMPTS = 6
AGAIN_AFTER = 8
# An exam of so few training steps is cheap whatever the clock said so far.
CHEAP_STEPS = 10.0
# An exam of more training steps than this repeats the training: an experiment.
EXPERIMENT_STEPS = 50.0
# Exams whose price nobody has told or learned.
UNKNOWN_SECONDS = 0.5
# While the script waits an exam is stopped after so many times its price. Not earlier than the first number of seconds
# (on a busy machine, in the first step, everything takes longer), and not later than the second.
STOPPED_AFTER = 20.0
STOPPED_SECONDS = (5.0, 60.0)
# After the script's end it has the time that is left, and a tenth and a second more: it plans with the time itself.
AFTER_THE_END = (1.1, 1.0)


class Agenda:
    """`perform` makes an exam on the patient; what it took is its price from then on."""

    def __init__(
        self,
        patient: Patient,
        *,
        step_seconds: Callable[[], float],
        fault: Callable[[str], None],
        exams: Mapping[str, str] = EXAMS,
    ) -> None:
        self.patient = patient
        self.exams = exams
        self.attempts: dict[str, list[int]] = {}
        """Exam -> the completed steps at which it was made."""
        self.prices: dict[str, float] = {}
        self._refusals: dict[str, float] = {}
        """What it took to refuse: the exam itself takes no less."""
        self._step_seconds = step_seconds
        self._fault = fault

    def load(self, name: str) -> Any:
        """The Exam; None (and never asked again) where it is unknown or cannot be imported."""
        name, _ = exam_and_stage(name)
        try:
            return load(name) if name in self.exams else None
        except Exception as error:  # an exam that cannot be loaded is one exam less, not a run less
            self._fault(f"the test {name!r} cannot be loaded: {error!r}")
            self.exams = {key: home for key, home in self.exams.items() if key != name}
            return None

    def due(self, name: str, completed: int, *, ended: bool) -> bool:
        """An exam is made once per step at most, and again only when the run has come twice as far."""
        exam = self.load(name)
        if exam is None:
            return False
        known_as, stage = exam_and_stage(name)
        if known_as in self.patient.stopped:
            return False
        tapes = self.patient.tapes.values()
        if stage and not any(tape.stage == stage for tape in tapes):
            return False
        if exam.needs_tape and not tapes and not ended:
            return False  # some script's first step cannot be taped; the second can
        attempts = self.attempts.get(name, [])
        if not attempts:
            return True
        if ended or len(attempts) >= MAX_ATTEMPTS:
            return ended and attempts[-1] < completed
        return completed >= 2 * attempts[-1] + AGAIN_AFTER

    def price(self, name: str, *, least: bool = False) -> float:
        """Seconds: learned where it was performed, else the exam's own guess in steps."""
        if name in self.prices:
            return self.prices[name]
        step = self._step_seconds()
        exam = self.load(name)
        if exam is None or not step:
            return UNKNOWN_SECONDS
        guess = float(exam.least if least and exam.least else exam.cost) * step
        return max(guess, self._refusals.get(name, 0.0))

    def cheap(self, name: str) -> bool:
        """Let in while anything is left of the first minute's budget: its steps are slow and would price it too high."""
        exam = self.load(name)
        return exam is not None and name not in self.prices and float(exam.cost) <= CHEAP_STEPS

    def is_experiment(self, name: str) -> bool:
        exam = self.load(name)
        return exam is not None and float(exam.cost) > EXPERIMENT_STEPS

    def perform(self, name: str, completed: int, *, seconds: float = math.inf) -> ExamResult | None:
        """None where it cannot be loaded; it counts as tried."""
        self.attempts.setdefault(name, []).append(completed)
        exam = self.load(name)
        if exam is None:
            return None
        began = time.perf_counter()
        self.patient.seconds = seconds
        self.patient.hard_seconds = self.hard_seconds(name, seconds)
        self.patient.hard_host_bytes, self.patient.hard_device_bytes = memory.working_room()
        result = self._at_its_stage(exam, name)
        memory.given_back()
        took = time.perf_counter() - began
        # A refusal is quick: it does not say what the exam itself will take. Nor do the steps so far: the first is slow.
        (self.prices if result.done else self._refusals)[name] = took
        if (why := self.patient.stopped.get(exam.name)) is not None:
            self._fault(f"a test was {why} and is not tried again: {exam.title}")
        return result

    def _at_its_stage(self, exam: Any, name: str) -> ExamResult:
        """An exam of one taped step sees those of its own stage; the result is named like what was asked for."""
        known_as, stage = exam_and_stage(name)
        with self.patient.at_stage(stage) if known_as in BY_STAGE else nullcontext():
            result: ExamResult = exam(self.patient)
        return replace(result, exam=name)

    def hard_seconds(self, name: str, seconds: float) -> float:
        """After how long it is stopped from outside; `seconds` are what is left after the script's end."""
        if seconds < math.inf:
            factor, more = AFTER_THE_END
            return factor * seconds + more
        least, most = STOPPED_SECONDS
        return min(most, max(least, STOPPED_AFTER * self.price(name)))
