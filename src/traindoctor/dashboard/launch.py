"""Starts the page beside a run, in a process of its own. Imports nothing heavy: the script comes first."""

import os
import re
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path

from traindoctor.errors import TraindoctorError

START_SECONDS = 30.0


def serve_in_background(folder: Path | str) -> str:
    """Starts the page for a run or a folder of runs and gives its address.

    It takes no time from the training loop, survives Ctrl-C, and ends by itself when this process has
    ended and the last page is closed.
    """
    # Without the variables that would make the child record itself.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRAINDOCTOR_")}
    command = [sys.executable, "-m", "traindoctor", "ui", str(Path(folder).resolve())]
    command += ["--no-browser", "--beside", str(os.getpid())]
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(START_SECONDS, child.kill)
    timer.daemon = True
    timer.start()
    assert child.stdout is not None
    try:
        for line in child.stdout:
            if match := re.search(r"http://\S+", line):
                # It is not waited for: it outlives us on purpose.
                child.returncode = 0
                return match[0]
    finally:
        timer.cancel()
        child.stdout.close()
    raise TraindoctorError("the page could not be started: try `traindoctor ui` by itself")


def open_browser(url: str) -> bool:
    """Opens a window where there is a desktop; a text browser would take over the terminal."""
    desktop = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not desktop and sys.platform not in ("darwin", "win32"):
        return False
    return webbrowser.open(url)
