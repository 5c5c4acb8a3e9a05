"""The loop that joins the halves: diagnose the record so far, perform the exam most wanted, diagnose again."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from traindoctor.capture.pace import Pace
from traindoctor.checks.base import Finding, NotJudged, Outcome
from traindoctor.diagnosis import Diagnosis, consequences, diagnose, wanted
from traindoctor.diagnosis.engine import Wanted
from traindoctor.diagnosis.rules import OUTCOME_ONLY, URGENT
from traindoctor.exams import EXAMS
from traindoctor.exams.agenda import Agenda
from traindoctor.ground.watchdog import Overdue, limited
from traindoctor.record import StoredRecord, open_record, record_path
from traindoctor.record.stages import exam_and_stage
from traindoctor.report.json import as_dict

if TYPE_CHECKING:
    from traindoctor.capture.watch import Watch
    from traindoctor.report.html import Notebook

# One diagnosis is a fraction of a second of arithmetic; past this something is wrong, and the script does not wait.
LOOK_SECONDS = 20.0


class Stopped(KeyboardInterrupt):
    """We end the script as Ctrl-C would: what it does on that (a checkpoint) it still does."""

    asked_by_us = True


class Doctor:
    """Listens to a Watch. `doctor.diagnosis` is the latest; `finish` ends the run and gives the last one."""

    def __init__(
        self,
        watch: Watch,
        *,
        after: float = 30.0,
        stop_when_sick: bool = False,
        stop_after: int | None = None,
        stop_seconds: float = math.inf,
        exam_seconds: float | None = None,
        also: Sequence[str] = (),
        quiet: bool = False,
        stream: IO[str] | None = None,
        exams: Mapping[str, str] = EXAMS,
    ) -> None:
        self.watch = watch
        self.after = after
        self.pace = Pace(
            watch.governor,
            stop_after=stop_after,
            stop_seconds=stop_seconds,
            exam_seconds=exam_seconds,
        )
        self.agenda = Agenda(
            watch.patient,
            step_seconds=lambda: watch.governor.step_seconds,
            fault=lambda text: watch.record_writer.note("fault", text),
            exams=exams,
        )
        self.also = also
        """Exams to make at the end whether a check asks for them or not."""
        self.stop_when_sick = stop_when_sick
        self.quiet = quiet
        self.stream = stream
        self.diagnosis: Diagnosis | None = None
        self.proven: dict[str, int] = {}
        """Cause -> completed steps when it was first likely or confirmed."""
        self.confirmed: list[str] = []
        """Roots that were confirmed while the script ran, and said."""
        self.asked: dict[str, set[str]] = {}
        """Exam performed -> the causes that wanted it."""
        self.when_finished: list[Callable[[Diagnosis | None], None]] = []
        """Called with the verdict once the record is closed (boards)."""
        self._record: StoredRecord | None = None
        self._open: list[Outcome] = []
        self.finished = False
        """The verdict has been given."""
        watch.listeners.append(self.on_step)

    # -- while the script runs ---------------------------------------------------------------------

    def on_step(self, step: int) -> None:
        """A step is complete. Replicas leave the examining to rank 0: they run the same program."""
        completed = step + 1
        if self.pace.enough(completed):
            raise Stopped("traindoctor has seen enough steps")
        if self.watch.rank or not self.pace.anything_due(completed):
            return
        began = time.perf_counter()
        try:
            if self.pace.look_due(completed):
                if self.pace.allowance <= 0:
                    return
                self._look(completed)
            if self._perform_affordable(completed, began):
                self._look(completed)
            self.pace.wait(completed, wanted=bool(self._open))
        finally:
            self.pace.spent += time.perf_counter() - began
        if self.stop_when_sick and self.confirmed:
            raise Stopped("traindoctor stopped the run: " + ", ".join(self.confirmed))

    def _perform_affordable(self, completed: int, began: float) -> bool:
        """Performs what is wanted and affordable; whether anything was."""
        performed = False
        while True:
            left = self.pace.allowance - (time.perf_counter() - began)
            name = self._choose(completed, left)
            if name is None:
                return performed
            self._perform(name, completed)
            performed = True
            if self.asked[name] & URGENT:
                self._look(completed)  # its answer may ask for the next one (a Function alone)

    def _choose(self, completed: int, seconds: float, *, ended: bool = False) -> str | None:
        """The most wanted exam that is due and fits into the seconds."""
        agenda = self.agenda
        lenient = seconds > 0 and (ended or self.watch.governor.early)
        prices = {wish.exam: agenda.price(wish.exam, least=ended) for wish in wanted(self._open)}
        for wish in wanted(self._open, costs=prices):
            affordable = prices[wish.exam] <= seconds or (lenient and agenda.cheap(wish.exam))
            if affordable and agenda.due(wish.exam, completed, ended=ended):
                if not self.settled or self._says_more(wish, ended=ended):
                    return wish.exam
        return None

    def _says_more(self, wish: Wanted, *, ended: bool) -> bool:
        """The cause is settled. While the script runs only what could explain it is asked, then all but experiments."""
        if self.agenda.is_experiment(wish.exam):
            return False
        assert self.diagnosis is not None
        settled = self.diagnosis.causes[0].finding.cause
        return ended or any(settled in consequences(cause) for cause in wish.causes)

    @property
    def settled(self) -> bool:
        """An exact test has named what keeps the run from learning: no experiment could say more."""
        if self.diagnosis is None or not self.diagnosis.causes:
            return False
        first = self.diagnosis.causes[0].finding
        exact = (first.status, first.grade) == ("confirmed", "exact")
        return exact and first.cause not in OUTCOME_ONLY

    def _perform(self, name: str, completed: int, *, seconds: float = math.inf) -> None:
        wishes = [wish for wish in wanted(self._open) if wish.exam == name]
        self.asked.setdefault(name, set()).update(*(wish.causes for wish in wishes))
        result = self.agenda.perform(name, completed, seconds=seconds)
        if (why := self.watch.patient.stopped.get(exam_and_stage(name)[0])) is not None:
            self._say(f"a test was {why}; it is not tried again")
        # What a later step will tell has not been tested yet.
        if result is not None and (self.finished or not result.values.get("too_early")):
            self.watch.record_writer.exam(result)

    def _look(self, completed: int) -> None:
        """Diagnoses the record so far and tells what is newly proven."""
        writer = self.watch.record_writer
        writer.flush()
        if self._record is None:
            self._record = StoredRecord(record_path(self.watch.out, self.watch.rank or 0))
        record = self._record
        record.refresh()
        try:
            self.diagnosis = limited(lambda: diagnose(record), seconds=LOOK_SECONDS)
        except Overdue as reason:
            raise TimeoutError(f"the diagnosis was stopped: {reason}") from None
        found = (*(cause.finding for cause in self.diagnosis.causes), *self.diagnosis.advice)
        asking: list[NotJudged | Finding] = [*self.diagnosis.not_judged, *found]
        self._open = [one for one in asking if one.wants]
        new = [
            cause.finding
            for cause in self.diagnosis.roots
            if cause.finding.status == "confirmed" and cause.finding.cause not in self.confirmed
        ]
        for cause in self.diagnosis.causes:
            if cause.finding.status != "possible":
                self.proven.setdefault(cause.finding.cause, completed)
        for finding in new:
            self.confirmed.append(finding.cause)
            self._say(f"step {completed}: {finding.cause} confirmed: {finding.summary}")
        writer.fact("doctor.proven", self.proven)

    def _say(self, text: str) -> None:
        if self.quiet:
            return
        stream = self.stream or sys.stderr
        try:
            stream.write(f"traindoctor: {text}\n")
            stream.flush()
        except (OSError, ValueError):
            self.quiet = True  # a closed stream is the script's affair

    # -- when it has ended -------------------------------------------------------------------------

    def finish(self, status: int | str = 0) -> Diagnosis | None:
        """Ends the run: up to `after` seconds for the exams still wanted, then the verdict.

        None where this process trained nothing, or is not rank 0.
        """
        if self.finished:
            return self.diagnosis
        self.finished = True
        if not self.watch.has_record or self.watch.rank:
            self.watch.close(status)
            return None
        began = time.perf_counter()
        try:
            self.watch.end(status)
            self._examine_after()
        except Exception as error:  # the border: a fault of ours must not cost the record
            text = "".join(traceback.format_exception(error))
            self.watch.record_writer.note("fault", f"the diagnosis failed: {text}")
        except KeyboardInterrupt:
            self._say("the remaining tests were cut short")
            self.watch.record_writer.fact("doctor.unmade", self.unmade)
        writer = self.watch.record_writer
        writer.fact("doctor.seconds", self.pace.spent)
        writer.fact("doctor.after_seconds", time.perf_counter() - began)
        writer.fact("doctor.asked", {exam: sorted(causes) for exam, causes in self.asked.items()})
        if self.diagnosis is not None:
            writer.fact("verdict", as_dict(self.diagnosis))
        self.watch.close(status)
        for tell in self.when_finished:
            try:
                tell(self.diagnosis)
            except Exception as error:  # the border: a board that fails must not fail the script
                self._say(f"the verdict could not be passed on: {type(error).__name__}: {error}")
        return self.diagnosis

    def report(self) -> Notebook:
        """The report page of the run so far: a notebook shows it inline, `.save(path)` writes it."""
        from traindoctor.report.html import notebook

        if not self.finished:
            self.watch.record_writer.flush()
        record = open_record(self.watch.out)
        return notebook(record, as_dict(diagnose(record)), name=self.watch.out.name)

    def close(self, status: int | str = 0) -> Diagnosis | None:
        """Ends what `watch()` began: torch is given back, the verdict is on all ranks' records."""
        self.finish(status)
        if self.diagnosis is not None:
            self.diagnosis = diagnose(open_record(self.watch.out))
        return self.diagnosis

    def __enter__(self) -> Doctor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close(0 if kind is None else kind.__name__)

    def _examine_after(self) -> None:
        completed = self.watch.step
        deadline = time.perf_counter() + self.after
        quiet, self.quiet = self.quiet, True  # the verdict follows at once
        try:
            self._look(completed)
            self._perform_wanted(completed, deadline)
            for name in self.also:
                left = deadline - time.perf_counter()
                if name not in self.agenda.attempts and self.agenda.price(name, least=True) <= left:
                    self._perform(name, completed, seconds=left)
            self._look(completed)
            self._perform_wanted(completed, deadline)  # what they measured may ask on
            self._note_unmade(completed)
        finally:
            self.quiet = quiet

    def _perform_wanted(self, completed: int, deadline: float) -> None:
        """One exam after the other, the most wanted first, each with a new look at the record."""
        while (left := deadline - time.perf_counter()) > 0:
            name = self._choose(completed, left, ended=True)
            if name is None:
                return
            self._perform(name, completed, seconds=left)
            self._look(completed)

    @property
    def unmade(self) -> list[str]:
        """Exams that are still wanted: the time was up before their turn, or before they could be tried once more."""
        left = [*self.also] if self.settled else [*(w.exam for w in wanted(self._open)), *self.also]
        agenda = self.agenda
        known = [name for name in dict.fromkeys(left) if exam_and_stage(name)[0] in agenda.exams]
        return [name for name in known if agenda.due(name, self.watch.step, ended=True)]

    def _note_unmade(self, completed: int) -> None:
        """Without its decisive exams no run is called healthy: the record is looked at once more."""
        unmade, writer = self.unmade, self.watch.record_writer
        writer.fact("doctor.unmade", unmade)
        if unmade:
            names = ", ".join(unmade)
            writer.note("info", f"not enough time for {names}: allow more with --after SECONDS")
            self._look(completed)


attending: Doctor | None = None
"""The doctor of this process, where `traindoctor run` started it."""


def present() -> Doctor | None:
    """The doctor that watches this process right now."""
    return attending if attending is not None and attending.watch.attached else None


def attend(watch: Watch, settings: Mapping[str, Any]) -> None:
    """Called in each process of a run once it is watched (capture/arming.py knows it by name)."""
    global attending
    attending = Doctor(
        watch,
        after=float(settings.get("after", 30.0)),
        stop_when_sick=bool(settings.get("stop_when_sick", False)),
        stop_after=settings.get("stop_after"),
        stop_seconds=float(settings.get("stop_seconds", math.inf)),
        exam_seconds=settings.get("exam_seconds"),
        also=settings.get("also", ()),
        quiet=bool(settings.get("quiet", False)),
    )
    # Child interpreters have no other end.
    watch.enders.append(attending.finish)


def watch(
    model: Any = None,
    optimizer: Any = None,
    *,
    out: Path | str | None = None,
    budget: float = 0.02,
    after: float = 30.0,
    quiet: bool = False,
) -> Doctor:
    """Watches everything that trains from now until `close()`, or inside the block:

        with traindoctor.watch(model, optimizer) as doctor:
            train()
        print(doctor.diagnosis)

    `model` and `optimizer` say what is meant where a program has several; they may be left out.
    """
    from traindoctor.capture.folders import new_folder
    from traindoctor.capture.watch import Watch

    watching = Watch(new_folder("watch", None if out is None else str(out)), budget=budget)
    if model is not None:
        watching.patient.saw(model)
    if optimizer is not None:
        from traindoctor.capture.hub import hub

        hub.optimizers.setdefault(optimizer, ())
    doctor = Doctor(watching, after=after, quiet=quiet)
    watching.attach()
    return doctor
