"""Runs a script exactly as Python would: fresh `__main__`, argv, path, exit status, tracebacks without us."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from traindoctor.capture.arming import say
from traindoctor.errors import TraindoctorError, in_a_sentence
from traindoctor.ground.unseen import FILE as UNSEEN

PACKAGE = str(Path(__file__).parents[1]) + os.sep
INTERRUPTED = 130
# We ended the script ourselves (--stop-when-sick).
STOPPED = 1


def check_script(script: str) -> tuple[types.CodeType, str]:
    """The script's code and its full path. Says in one sentence why it cannot be run, before anything else is done."""
    path = Path(script)
    if path.is_dir():
        path = path / "__main__.py"
    if not path.is_file():
        raise TraindoctorError(f"there is no script {script!r}; give the path of a Python file")
    full = os.path.abspath(path)
    return _compiled(path, full, script), full


def run_script(script: str, arguments: Sequence[str], finish: Callable[[int | str], None]) -> int:
    """Runs `script.py`; `finish(status)` is called when it has ended, however. Gives its exit status."""
    code, full = check_script(script)
    module = _fresh_main(file=full)
    module.__loader__ = SourceFileLoader("__main__", full)
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(full).resolve().parent)
    return _execute(functools.partial(exec, code, vars(module)), finish)


def run_module(name: str, arguments: Sequence[str], finish: Callable[[int | str], None]) -> int:
    """Runs `-m name` as Python does."""
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    return _execute(functools.partial(_module, name, arguments), finish)


error_said: str | None = None
"""What ended the script, where that was an error: its kind and the first sentence of its text."""


class _CannotRun(Exception):
    """There is nothing to run: not a failure of the user's code."""


def _module(name: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-m", *arguments]  # what the packages above it see while they are imported
    spec = _find(name)
    loader: Any = spec.loader
    try:
        code = loader.get_code(spec.name)
    except SyntaxError as error:
        raise _CannotRun(f"{name} is not valid Python: {error}") from None
    if code is None or spec.origin is None:
        raise _CannotRun(f"the module {name!r} has no Python code to run")
    module = _fresh_main(file=spec.origin)
    module.__spec__ = spec
    module.__package__ = spec.parent
    module.__loader__ = loader
    sys.argv = [spec.origin, *arguments]
    exec(code, vars(module))


def _find(name: str) -> ModuleSpec:
    """Imports the packages above the module; what fails inside them is the user's to see."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ImportError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _CannotRun(f"cannot find the module {name!r}: {error}") from None
    except ValueError as error:
        raise _CannotRun(f"cannot find the module {name!r}: {error}") from None
    if spec is None or spec.loader is None:
        raise _CannotRun(f"there is no module {name!r} to run; check the name and the path")
    return spec


def _compiled(path: Path, full: str, name: str) -> types.CodeType:
    try:
        return compile(path.read_bytes(), full, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise TraindoctorError(
            f"{name} is not valid Python: {error.msg} in line {error.lineno}; give a Python script"
        ) from None
    except ValueError as error:
        raise TraindoctorError(
            f"{name} is not valid Python: {error}; give a Python script"
        ) from None
    except OSError as error:
        raise TraindoctorError(f"cannot read {name}: {error.strerror}") from None


def _fresh_main(*, file: str) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = file
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    vars(module).setdefault("__annotations__", {})
    module.__cached__ = None  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    return module


def _execute(run: Callable[[], object], finish: Callable[[int | str], None]) -> int:
    global error_said
    process = os.getpid()
    interrupted = False
    ended: int | str
    try:
        run()
        ended = status = 0
    except _CannotRun as error:
        raise TraindoctorError(str(error)) from None
    except SystemExit as request:
        ended = status = _exit_status(request)
    except KeyboardInterrupt as error:
        if getattr(error, "asked_by_us", False):
            _flush()
            _finish(finish, "stopped")
            return STOPPED
        _print_traceback(error)
        interrupted, ended, status = True, "KeyboardInterrupt", INTERRUPTED
    except BaseException as error:  # as the interpreter does: print and end with 1
        _print_traceback(error)
        error_said = in_a_sentence(error)
        ended, status = type(error).__name__, 1
    _flush()
    if (
        os.getpid() == process
    ):  # a forked child that comes out here ends as Python's would: the verdict is its parent's
        _finish(finish, ended)
    if interrupted:
        # As Python does: threads are waited for, exit handlers run, and a shell sees that Ctrl-C ended the program.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _finish(finish: Callable[[int | str], None], ended: int | str) -> None:
    """The script's status is settled: whatever happens to us from here on is one sentence."""
    try:
        finish(ended)
    except KeyboardInterrupt:
        say("the verdict was cut short")
    except TraindoctorError as error:
        say(str(error))
    except Exception as error:  # the border: a full disk is no fault of the script's
        say(f"no verdict: {type(error).__name__}: {error}")


def _exit_status(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF if os.name == "posix" else request.code
    print(request.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    without_us(error)
    sys.excepthook(type(error), error, error.__traceback__)


def without_us(error: BaseException) -> None:
    """Takes our own frames out of an exception's traceback, and out of those it came from."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        kept, frame = [], one.__traceback__
        while frame is not None:
            if not frame.tb_frame.f_code.co_filename.startswith((PACKAGE, UNSEEN)):
                kept.append(frame)
            frame = frame.tb_next
        for this, following in zip(kept, [*kept[1:], None]):
            this.tb_next = following
        one.__traceback__ = kept[0] if kept else None
        waiting += [one.__cause__, one.__context__]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # a closed pipe is the script's affair
