"""Python with torch already imported: a fresh process for the price of a fork.

Most tests that start a program pay more for `import torch` and for what an optimizer imports at its first step than for
the program itself. A `WarmPython` is one process that has done both; every run is a fork of it, in a folder, an environment
and streams of its own. What a test says about the start of Python, its imports or its options needs a real process.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What an optimizer imports at its first step is most of what a small program takes.
PRELOADED = ("torch", "torch._dynamo", "numpy")
# What Python and torch read when they start: the same for every run.
AT_THE_START = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def warm_run(
    arguments: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 1200.0,
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder)`."""
    done = shared().run(arguments, folder=folder, env=env, stdin=stdin.encode(), timeout=timeout)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@functools.cache
def shared() -> WarmPython:
    """The one of this process."""
    made = WarmPython()
    atexit.register(made.close)
    return made


class WarmPython:
    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | AT_THE_START,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 600.0,
    ) -> subprocess.CompletedProcess[bytes]:
        """Raises subprocess.TimeoutExpired; then the program and all that it started are killed."""
        job = {
            "arguments": list(arguments),
            "folder": str(folder),
            "env": {**(os.environ if env is None else env), **AT_THE_START},
            "timeout": timeout,
        }
        with tempfile.TemporaryDirectory() as streams:
            (Path(streams) / "in").write_bytes(stdin)
            status = self._ask(job | {"streams": streams})
            out, err = ((Path(streams) / name).read_bytes() for name in ("out", "err"))
        if status is None:
            raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
        return subprocess.CompletedProcess(list(arguments), status, out, err)

    def _ask(self, job: dict[str, Any]) -> int | None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(job).encode() + b"\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise RuntimeError(f"the warm Python has ended with status {self._server.wait()}")
        status: int | None = json.loads(answer)
        return status

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def serve() -> dict[str, Any] | None:
    """Forks once for every line of its input. Returns in the fork, with its job; None at the end of the input."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        process = os.fork()
        if process == 0:
            answers.close()
            return job
        answers.write(f"{json.dumps(wait(process, job['timeout']))}\n")
    return None


def wait(process: int, timeout: float) -> int | None:
    """The exit status as subprocess tells it; None if it had to be killed."""
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(process, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, timeout)
    late = False
    try:
        status = os.waitpid(process, 0)[1]
        late = signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return None if late else os.waitstatus_to_exitcode(status)


def prepare(job: dict[str, Any]) -> list[str]:
    """The fork becomes what a new process would be."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    os.chdir(job["folder"])
    for name, number, mode in (("in", 0, "rb"), ("out", 1, "wb"), ("err", 2, "wb")):
        with open(Path(job["streams"]) / name, mode) as stream:
            os.dup2(stream.fileno(), number)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    os.environ.clear()
    os.environ.update(job["env"])
    sys.path[1:1] = [part for part in job["env"].get("PYTHONPATH", "").split(os.pathsep) if part]
    arguments: list[str] = job["arguments"]
    return arguments


def execute(arguments: Sequence[str]) -> None:
    """As `python ARGUMENTS` does, for -m, -c and a file."""
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).resolve().parent)
        main.__file__ = os.path.abspath(first)
        code = compile(Path(first).read_bytes(), main.__file__, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def told_without_us(error: BaseException) -> None:
    """The traceback as the interpreter would print it: it begins in the program."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)


if __name__ == "__main__":
    for name in PRELOADED:
        __import__(name)
    asked = serve()
    if asked is not None:
        wanted = prepare(asked)
        try:
            execute(wanted)
        except SystemExit:
            raise
        except KeyboardInterrupt as error:
            told_without_us(error)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException as error:
            told_without_us(error)
            sys.exit(1)
