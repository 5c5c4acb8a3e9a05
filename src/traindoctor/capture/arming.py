"""Arms the recording when the script imports torch, never before. Importing this imports neither torch nor numpy.

A script may set OMP_NUM_THREADS before its own `import torch`: had we imported it first, the script would
run with other threads and other bits.

The script's own process and the ranks of a launcher are armed at once. Every other process, forked or started anew, only
waits for its first training (capture/first_training.py): most of them load data, compile or copy files.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traindoctor.capture import forking, launchers
from traindoctor.capture.import_hook import AfterImport

if TYPE_CHECKING:
    from traindoctor.capture.watch import Watch

# Child interpreters find the run by this variable and the start-up folder on their PYTHONPATH.
VARIABLE = "TRAINDOCTOR_RUN"
STARTUP = Path(__file__).parent / "startup"

watch: Watch | None = None
"""The watch of this process, once torch has been imported."""

_settings: dict[str, Any] | None = None
"""Of the run that this process belongs to."""
_child = False
"""Not the script's own process, nor a rank: armed by its first training, and silent on the script's streams."""
_fork_handled = False


def arm(settings: dict[str, Any]) -> None:
    """Watches this process as soon as it imports torch. A second call does nothing."""
    _join(located(settings), child=False)


def located(settings: dict[str, Any]) -> dict[str, Any]:
    """With the script's full path: it may leave its folder before it imports torch, and its children start elsewhere."""
    script = settings.get("script")
    if not script or settings.get("module"):
        return settings
    file = Path(os.path.abspath(script))
    return {**settings, "file": str(file / "__main__.py" if file.is_dir() else file)}


def join(settings: dict[str, Any]) -> None:
    """A child interpreter's part: watched from its first training on, or from the start where it is a rank."""
    rank = launchers.identity()
    if rank is None or rank == settings.get("rank"):
        _join(settings, child=True)
        return
    # What this rank starts itself inherits its number, and is no rank.
    settings = {**settings, "rank": rank, "quiet": True}
    os.environ[VARIABLE] = json.dumps(settings)
    _join(settings, child=False)


def _join(settings: dict[str, Any], *, child: bool) -> None:
    global _settings, _child, _fork_handled
    if _settings is not None:
        return
    _settings, _child = settings, child
    if not _fork_handled and hasattr(os, "register_at_fork"):
        _fork_handled = True
        forking.in_child(_forked)
    if "torch" in sys.modules:
        _begin()
    else:
        sys.meta_path.insert(0, AfterImport("torch", _begin))


def _begin() -> None:
    """torch is there."""
    if _child:
        with _contained():
            from traindoctor.capture.first_training import wait_for_training

            wait_for_training(_watch_process)
    else:
        _watch_process()


def _watch_process() -> None:
    global watch
    settings = _settings
    if settings is None or watch is not None:
        return
    if _child:
        # The verdict is on the record of the first; who comes later is not kept waiting for exams at its end.
        first = not (Path(settings["out"]) / "record-0.sqlite").exists()
        settings = {**settings, "quiet": True, **({} if first else {"after": 0})}
    with _contained():
        watch = start_watch(settings)
        if settings.get("started"):
            # "module:function" of the side that listens; a child interpreter has only these settings.
            home, _, name = str(settings["started"]).partition(":")
            getattr(importlib.import_module(home), name)(watch, settings)


@contextmanager
def _contained() -> Iterator[None]:
    """The border: the script must run whatever happens to us, and no warning of ours is shown or raised in it."""
    # The list is exchanged, not `catch_warnings` used: that would make the script's own warnings appear again.
    ignore = ("ignore", None, Warning, None, 0)
    filters, ours = warnings.filters, [ignore]
    warnings.filters = ours
    try:
        yield
    except Exception as error:
        if not _child:
            say(f"not watching this process: {error}")
    finally:
        # What libraries ask for while we import them (NumPy does) is theirs.
        filters[:0] = [one for one in ours if one is not ignore]  # type: ignore[index]
        warnings.filters = filters


def say(text: str) -> None:
    """One line on standard error, where the script has left us one."""
    try:
        print(f"traindoctor: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        pass


def start_watch(settings: dict[str, Any]) -> Watch:
    """Hooks torch in this process and sees to it that the record is closed at its end."""
    import atexit

    from traindoctor.capture.watch import Watch
    from traindoctor.record.script_text import script_text

    made = Watch(
        Path(settings["out"]),
        budget=float(settings.get("budget", 0.02)),
        replay=bool(settings.get("replay", True)),
        memory_limit=settings.get("memory"),
    )
    script = {"path": settings.get("script"), "argv": settings.get("argv", [])}
    made.describe(script=script | ({"module": True} if settings.get("module") else {}))
    if settings.get("file") and (text := script_text(settings["file"], name=script["path"])):
        made.describe(**{"script.text": text})
    made.attach()
    atexit.register(made.run_enders)
    return made


def _forked() -> None:
    """In a forked child: its parent's watch is off (Watch.forked); a training of its own arms it anew."""
    global watch, _child
    if _settings is None:
        return
    watch, _child = None, True
    if "torch.optim.optimizer" in sys.modules:
        _begin()


def export(settings: dict[str, Any]) -> None:
    """Lets child interpreters (mp.spawn, torchrun, subprocess) join this run."""
    os.environ[VARIABLE] = json.dumps({**located(settings), "rank": launchers.identity()})
    old = os.environ.get("PYTHONPATH")
    if str(STARTUP) not in (old or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{old}" if old else str(STARTUP)


def disarm() -> None:
    """Gives this process back, and what `export` put into its environment: for callers that live on."""
    global watch, _settings
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
    if watch is not None:
        watch.close()
        watch = None
    _settings = None
    os.environ.pop(VARIABLE, None)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and path != str(STARTUP)]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
