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
from traindoctor.diagnosis.rules import OVER_BATCHES
from traindoctor.errors import TraindoctorError
from traindoctor.record import ExamResult, open_record

# Steps that are trained: checks that read a course (rates, norms) ask for twenty points of it.
STEPS = 24
# Time for exams, in seconds, and for the steps: together under a minute, whatever the model.
SECONDS = 40.0
TRAINING_SECONDS = 12.0
# Part of every check-up, though no check of the diagnosis may ask for them.
ALWAYS = ("finite_difference", "overfit_batch", "precision_ladder")
# On request: every module alone. It costs several times the rest and has seconds of its own.
LAYERS = ("layers_alone",)
LAYERS_SECONDS = 60.0


@dataclass(frozen=True)
class Checkup:
    """What was found, and what each exam measured."""

    diagnosis: Diagnosis
    asked: dict[str, set[str]]
    """Exam -> the causes it was made for."""
    exams: tuple[ExamResult, ...]
    unmade: tuple[str, ...] = ()
    """Exams that were wanted when the time was up."""
    decode: Callable[[list[int]], Any] | None = None
    """Makes text of tokens, where a tokenizer is known."""
    script: Any = None
    """The script's text, as the record keeps it."""


def check(
    model: Any,
    batch: Any,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    layers: bool = False,
) -> Diagnosis:
    """`traindoctor.check(model, batches, lambda model, batch: ..., optimizer)` before the training starts.

    `batch` is one batch, or a list or loader of several (better). Model and optimizer are copied: yours stay as
    they are. `loss_fn(model, batch)` gives the scalar that training will call backward on. `seconds` is the time
    for exams; `layers` tests every module alone as well, for up to a minute more.
    """
    made = checkup(model, batch, loss_fn, optimizer, steps=steps, seconds=seconds, layers=layers)
    return made.diagnosis


def checkup(
    model: Any,
    batch: Any,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    layers: bool = False,
) -> Checkup:
    """As `check`, with what each exam measured."""
    refuse_strangers(model, loss_fn, optimizer)
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

    from traindoctor.ground.modes import random_state_restored

    # With one batch in hand nothing can be said about how batches follow each other.
    skipped = frozenset() if several else OVER_BATCHES
    # Dropout draws random numbers on the way: the caller's training must not see that.
    with random_state_restored():
        return examined(train, seconds=seconds, skipped=skipped, layers=layers)


def refuse_strangers(model: Any, loss_fn: Any, optimizer: Any) -> None:
    """Says in one sentence what is not what it should be."""
    from torch import nn, optim

    for name, value, kind in (
        ("model", model, nn.Module),
        ("optimizer", optimizer, optim.Optimizer),
    ):
        if not isinstance(value, kind):
            raise TraindoctorError(
                f"the {name} must be an {'nn.Module' if kind is nn.Module else 'torch.optim.Optimizer'}, "
                f"it is {type(value).__name__}: the order is model, batches, loss_fn, optimizer"
            )
    if not callable(loss_fn):
        raise TraindoctorError(
            f"loss_fn must be a function of model and batch, it is {type(loss_fn).__name__}"
        )


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
    train: Callable[[], object],
    *,
    seconds: float,
    skipped: frozenset[str] = frozenset(),
    layers: bool = False,
) -> Checkup:
    """Watches `train` for its first steps, examines, judges. The record lives in a folder that is removed."""
    from traindoctor.capture.watch import Watch
    from traindoctor.doctor import Doctor, Stopped

    folder = Path(tempfile.mkdtemp(prefix="traindoctor-check-"))
    try:
        watch = Watch(folder, budget=1.0, rank=0)
        doctor = Doctor(watch, stop_after=STEPS, quiet=True, **examining(seconds, layers=layers))
        watch.attach()
        try:
            train()
        except Stopped:
            pass  # it has trained enough
        finally:
            doctor.finish()
        return judged(folder, skipped)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def examining(seconds: float, *, layers: bool = False) -> dict[str, Any]:
    """How the doctor spends its seconds: half of them at the first steps, the rest after them."""
    return {
        "stop_seconds": TRAINING_SECONDS,
        "exam_seconds": seconds / 2,
        "after": seconds / 2 + (LAYERS_SECONDS if layers else 0.0),
        "also": (*(LAYERS if layers else ()), *ALWAYS),
    }


def judged(folder: Path, skipped: frozenset[str] = frozenset()) -> Checkup:
    """The verdict on what the folder holds. The doctor that made the exams may have lived in a child process."""
    record = open_record(folder) if list(folder.glob("record-*.sqlite")) else None
    if record is None or not record.num_steps:
        raise TraindoctorError(
            "nothing was trained: no optimizer step and no backward pass was seen; check needs a training script, "
            "or a file with a patient() function"
        )
    checks = [check for check in CHECKS if check.slug not in skipped]
    asked = {exam: set(causes) for exam, causes in (record.fact("doctor.asked") or {}).items()}
    unmade = tuple(record.fact("doctor.unmade") or ())
    diagnosis = diagnose(record, checks=checks, enough_steps=1)
    script = record.fact("script.text")
    return Checkup(diagnosis, asked, record.exam_results, unmade, script=script)
