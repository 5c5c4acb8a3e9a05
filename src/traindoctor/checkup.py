"""Examines model, loss, data and optimizer before training: a few steps on copies, then every exam wanted."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from traindoctor.checks import CHECKS
from traindoctor.diagnosis import Diagnosis, diagnose
from traindoctor.errors import TraindoctorError
from traindoctor.record import open_record

# Steps that are trained: checks that read a course (rates, norms) ask for twenty points of it.
STEPS = 24
# Time for exams, in seconds; with the steps themselves a small model stays under a minute.
SECONDS = 40.0
# With one batch in hand nothing can be said about how batches follow each other.
OVER_BATCHES = frozenset(
    {"batch-not-changing", "data-not-shuffled", "labels-unrelated", "overfitting"}
)


@dataclass(frozen=True)
class Checkup:
    """What was found, and which exam each cause was judged by."""

    diagnosis: Diagnosis
    exam_of: dict[str, str]


def check(
    model: Any,
    batch: Any,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
) -> Diagnosis:
    """`traindoctor.check(model, batches, lambda model, batch: ..., optimizer)` before the training starts.

    `batch` is one batch, or a list or loader of several (better). Model and optimizer are copied: yours stay as
    they are. `loss_fn(model, batch)` gives the scalar that training will call backward on.
    """
    return checkup(model, batch, loss_fn, optimizer, steps=steps, seconds=seconds).diagnosis


def checkup(
    model: Any,
    batch: Any,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
) -> Checkup:
    """As `check`, with what each cause was judged by."""
    batches, several = batches_of(batch)
    # Together, so that the copied optimizer holds the copied parameters.
    model, optimizer = copy.deepcopy((model, optimizer))
    model.train()

    def train() -> None:
        for _, this in zip(range(steps), batches):
            optimizer.zero_grad()
            loss = loss_fn(model, this)
            if getattr(loss, "numel", lambda: 0)() != 1:
                raise TraindoctorError(
                    f"loss_fn(model, batch) must give a scalar tensor, it gave {type(loss).__name__}"
                    f"{tuple(getattr(loss, 'shape', ()))}"
                )
            loss.backward()
            optimizer.step()

    from traindoctor.replay.patient import random_state_restored

    skipped = frozenset() if several else OVER_BATCHES
    # Dropout draws random numbers on the way: the caller's training must not see that.
    with random_state_restored():
        return examined(train, seconds=seconds, skipped=skipped)


def batches_of(batch: Any) -> tuple[Iterator[Any], bool]:
    """An endless stream of batches and whether they differ. A tensor, tuple or dict is one batch."""
    import torch

    one = isinstance(batch, torch.Tensor | tuple | dict) or not isinstance(batch, Iterable)
    if one:
        return cycle([batch]), False
    few = list(islice(iter(batch), STEPS))
    if not few:
        raise TraindoctorError("check needs at least one batch, the batches given are empty")
    return cycle(few), len(few) > 1


def examined(
    train: Callable[[], None], *, seconds: float, skipped: frozenset[str] = frozenset()
) -> Checkup:
    """Watches `train`, examines, judges. The record lives in a folder that is removed."""
    from traindoctor.capture.watch import Watch
    from traindoctor.doctor import Doctor

    folder = Path(tempfile.mkdtemp(prefix="traindoctor-check-"))
    try:
        watch = Watch(folder, budget=1.0, rank=0)
        doctor = Doctor(watch, after=seconds, quiet=True)
        watch.attach()
        try:
            train()
        finally:
            doctor.finish()
        checks = [check for check in CHECKS if check.slug not in skipped]
        return Checkup(diagnose(open_record(folder), checks=checks), exam_of(doctor.asked))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def exam_of(asked: dict[str, set[str]]) -> dict[str, str]:
    """Cause -> the exam that was made for it."""
    return {cause: exam for exam, causes in asked.items() for cause in causes}
