"""`traindoctor run --verify-fix patch.diff script.py`: the run without the change that the patched one is judged against.

A recorded run of the same script with the same arguments is taken where its first batch is that of the patched run: it was
the same seed. Otherwise the script runs once more, as it is, from the same start of the random generators.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traindoctor.errors import RecordError

if TYPE_CHECKING:
    from traindoctor.diagnosis import Diagnosis
    from traindoctor.record import Record

# Both runs begin with this state of Python's and NumPy's generators; torch's own begins with the same seed in every process.
SEED = 0
# Says to a child of ours that it is the run without the change.
VARIABLE = "TRAINDOCTOR_SAME_START"
BEFORE = "without-the-change"


def same_start() -> None:
    """Scripts that set no seed of their own draw from the system's: both runs shall draw alike."""
    from traindoctor.capture.import_hook import AfterImport

    def seed_numpy() -> None:
        import numpy

        numpy.random.seed(SEED)

    random.seed(SEED)
    if "numpy" in sys.modules:
        seed_numpy()
    else:
        sys.meta_path.insert(0, AfterImport("numpy", seed_numpy))


def name_the_patch(settings: Mapping[str, Any]) -> None:
    """What ran is a copy; the record names the script that was typed, and the patch."""
    from traindoctor.capture import arming

    if "patch" not in settings:
        return
    from traindoctor.cli.patched_script import clean

    clean(Path(settings["script"]).parent)
    if arming.watch is not None and arming.watch.has_record:
        script = {"path": settings["typed"], "argv": settings["argv"]}
        arming.watch.describe(script=script | {"patch": settings["patch"]})


def with_verification(found: Diagnosis, folder: Path, settings: Mapping[str, Any]) -> Diagnosis:
    """The verdict on the patched run, with what the change did."""
    from dataclasses import replace

    from traindoctor.cli.patched_script import PATCH
    from traindoctor.compare.verification import verified
    from traindoctor.diagnosis import diagnose
    from traindoctor.record import open_record

    after = open_record(folder)
    against = recorded_before(after, folder, settings) or run_before(folder, settings)
    before = open_record(against)
    made = verified(
        (before, diagnose(before)),
        (after, found),
        patch=settings["patch"],
        text=(Path(settings["script"]).parent / PATCH).read_text(encoding="utf-8"),
        against=against,
    )
    return replace(found, verified=made.as_dict())


def recorded_before(after: Record, folder: Path, settings: Mapping[str, Any]) -> Path | None:
    """The newest run beside this one, of the same script and arguments, that began with the same batch."""
    from traindoctor.compare.run_losses import same_data
    from traindoctor.record import open_record
    from traindoctor.record.script_text import script_text
    from traindoctor.record.secrets import redact_arguments

    text = script_text(settings["unpatched"])
    if text is None:
        return None
    runs = {file.parent for file in folder.parent.glob("*/record-0.sqlite")} - {folder}
    for path in sorted(
        runs, key=lambda run: (run / "record-0.sqlite").stat().st_mtime, reverse=True
    ):
        try:
            record = open_record(path)
        except RecordError:
            continue
        if not isinstance(record.fact("run.ended"), int):
            continue  # it runs still, or died
        script, recorded = record.fact("script") or {}, record.fact("script.text") or {}
        same = recorded.get("sha256") == text["sha256"] and not script.get("patch")
        arguments = redact_arguments(map(str, settings["argv"]))
        if not same or list(script.get("argv") or []) != arguments:
            continue
        data, since = same_data(record, after)
        if data == "same" or (data == "differ" and since != 0):
            return path
    return None


def run_before(folder: Path, settings: Mapping[str, Any]) -> Path:
    """The script as it is, in a process of its own; what it prints goes to standard error."""
    against = folder / BEFORE
    if not settings["quiet"]:
        print(
            f"traindoctor: no equal run of {settings['unpatched']} is recorded beside this one; it runs now, without the change",
            file=sys.stderr,
        )
    options = ["--quiet", "--out", str(against), "--budget", str(100 * settings["budget"])]
    options += ["--after", str(settings["after"])]
    if settings["memory"] is not None:
        options += ["--memory", str(settings["memory"])]
    command = [sys.executable, "-m", "traindoctor", "run", *options, settings["unpatched"]]
    done = subprocess.run([*command, *arguments_of(settings)], stdout=2, env=environment())
    if not list(against.glob("record-*.sqlite")):
        raise RecordError(
            f"{settings['unpatched']} without the change ended with status {done.returncode} before it trained: "
            "there is nothing to verify the change against"
        )
    return against


def arguments_of(settings: Mapping[str, Any]) -> Sequence[str]:
    return [str(one) for one in settings["argv"]]


def environment() -> dict[str, str]:
    """As we were started: the patched run's own variables would make the child a part of it."""
    from traindoctor.capture import arming

    kept = {name: value for name, value in os.environ.items() if name != arming.VARIABLE}
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path != str(arming.STARTUP))
    if not kept["PYTHONPATH"]:
        del kept["PYTHONPATH"]
    return {**kept, VARIABLE: "1"}
