"""Snapshots while the run goes on: the keeper hears every event, and its copies are paid for."""

from __future__ import annotations

import time
from collections.abc import Callable

from traindoctor.capture.budget import Governor
from traindoctor.capture.hub import hub
from traindoctor.events import Event
from traindoctor.experiment.batches import needs_variables
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.snapshot import Keeper
from traindoctor.record import RecordWriter

# Later snapshots are paid for like any other measurement.
PART, EVERY = "snapshot", 30
# After the first minute a snapshot is taken when the last one, with all steps that were heard for it, has cost this part
# of what was earned since.
SHARE_OF_SNAPSHOTS = 0.25


class Keeping:
    """Makes `patient.snapshot`. A keeper that fails is taken off, and the run goes on without."""

    def __init__(
        self, patient: Patient, governor: Governor, fault: Callable[[str, Exception], None]
    ) -> None:
        self.patient = patient
        self.governor = governor
        self._fault = fault
        self._seconds = 0.0
        self._whole = self._earned_before = 0.0
        """What the latest snapshot and the steps after it cost in all, and what had been earned when it was taken."""
        self._asked: int | None = 0
        """Tapes when it was last asked whether variables are needed; None: it is known."""
        self.keeper: Keeper | None = Keeper(patient.names)
        patient.snapshot = self.keeper
        governor.add(PART, EVERY)
        self.keeper.allowed = lambda step: self._afforded and PART in governor.choose(step)
        self.keeper.nobody_steps = lambda: not len(hub.optimizers)

    def on(self, event: Event, step: int) -> None:
        if self.keeper is None:
            return
        kept = self.keeper.recent
        began = time.perf_counter() if self.keeper.wants(step) else None
        try:
            self.keeper.on(event, step)
            if self.keeper.own.enough:
                self._settle(self.keeper)
            if self._asked is not None and self._asked != len(self.patient.tapes):
                # What the script computes after a step is on its tape too: it is looked at when that is over.
                if step > max(self.patient.tapes) + 1:
                    self._ask(self.keeper)
            if began is not None:
                self._seconds += time.perf_counter() - began
            if self.keeper.recent is not kept:
                # The copy, and all the batches that were kept for the one before.
                self.governor.ran(PART, step, self._seconds)
                self._seconds = self._whole = 0.0
                self._earned_before = self.governor.earned
        except Exception as error:  # the same border as for probes
            self._fault("snapshot", error)
            self.keeper = self.patient.snapshot = None

    def wants(self, step: int) -> bool:
        """Whether everything of this step must be heard."""
        return self.keeper is not None and self.keeper.wants(step)

    def heard(self, seconds: float) -> None:
        """A step was heard for its batch alone, and cost so much."""
        self._whole += seconds

    @property
    def _afforded(self) -> bool:
        earned = self.governor.earned - self._earned_before
        return self.governor.early or self._whole <= SHARE_OF_SNAPSHOTS * earned

    def _ask(self, keeper: Keeper) -> None:
        """A new tape, and the batch of its step: does it need what only a variable holds?"""
        logs, tapes = keeper.logs, self.patient.tapes
        answer = needs_variables([(t, logs[s]) for s, t in tapes.items() if s in logs])
        self._asked = len(tapes) if answer is None else None
        keeper.looks_at_variables = answer is not False

    def _settle(self, keeper: Keeper) -> None:
        """What the script's own updates were found to be is told like an optimizer's settings."""
        found, writer = keeper.settle(), self.patient.writer
        if found is None or writer is None:
            return
        groups = [
            {**settings, "num_tensors": len(names)}
            for settings, names in zip(found.settings[0], found.groups)
        ]
        writer.fact("optimizer.groups", [{"class": found.kind, "by_hand": True, "groups": groups}])
        writer.scalar("decay.ratio", 0, found.pull)
        for log in keeper.first.logs if keeper.first is not None else ():
            writer.scalar("optim.lr", log.step, log.settings[0]["lr"])

    def finish(self, writer: RecordWriter) -> None:
        """The run has ended: what is held, or why nothing is."""
        if self.keeper is not None:
            self._settle(self.keeper)
            own = self.keeper.own
            if own.num_tensors:
                told = {"tensors": own.num_tensors, "resting": own.resting()}
                told |= {"deserted": own.deserted, "left_alone": own.left_alone}
                writer.fact("optimizer.own", told)
            writer.fact("snapshot", self.keeper.describe())
