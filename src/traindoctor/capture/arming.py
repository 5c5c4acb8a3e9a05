"""Arms the recording when the script imports torch, never before. Importing this imports neither torch nor numpy.

A script may set OMP_NUM_THREADS before its own `import torch`: had we imported it first, the script would
run with other threads and other bits.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traindoctor.capture.watch import Watch

# Child interpreters find the run by this variable and the start-up folder on their PYTHONPATH.
VARIABLE = "TRAINDOCTOR_RUN"
STARTUP = Path(__file__).parent / "startup"

watch: Watch | None = None
"""The watch of this process, once torch has been imported."""


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls `action` right after the module `name` has been executed; then it is gone."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        loader, action = spec.loader, self.action
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            action()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def arm(settings: dict[str, Any], started: Callable[[Watch], None] | None = None) -> None:
    """Watches this process as soon as it imports torch. A second call does nothing."""
    if getattr(sys, "_traindoctor_armed", False):
        return
    sys._traindoctor_armed = True  # type: ignore[attr-defined]

    def begin() -> None:
        global watch
        try:
            watch = start_watch(settings)
            if started is not None:
                started(watch)
            elif settings.get("started"):
                # "module:function" of the side that listens; a child interpreter has only these settings.
                home, _, name = str(settings["started"]).partition(":")
                getattr(importlib.import_module(home), name)(watch, settings)
        except Exception as error:  # the border: the script must run whatever happens to us
            print(f"traindoctor: not watching this process: {error}", file=sys.stderr)

    if "torch" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, AfterImport("torch", begin))


def start_watch(settings: dict[str, Any]) -> Watch:
    """Hooks torch in this process and sees to it that the record is closed at its end."""
    import atexit

    from traindoctor.capture.watch import Watch

    made = Watch(
        Path(settings["out"]),
        budget=float(settings.get("budget", 0.02)),
        replay=bool(settings.get("replay", True)),
    )
    made.describe(script={"path": settings.get("script"), "argv": settings.get("argv", [])})
    made.attach()
    atexit.register(made.close)
    os.register_at_fork(after_in_child=made.forked)
    return made


def export(settings: dict[str, Any]) -> None:
    """Lets child interpreters (mp.spawn, torchrun, subprocess) join this run."""
    os.environ[VARIABLE] = json.dumps(settings)
    old = os.environ.get("PYTHONPATH")
    if str(STARTUP) not in (old or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{old}" if old else str(STARTUP)


def disarm() -> None:
    """Gives this process back, and what `export` put into its environment: for callers that live on."""
    global watch
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
    if watch is not None:
        watch.close()
        watch = None
    sys._traindoctor_armed = False  # type: ignore[attr-defined]
    os.environ.pop(VARIABLE, None)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and path != str(STARTUP)]
    if kept:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    else:
        os.environ.pop("PYTHONPATH", None)
