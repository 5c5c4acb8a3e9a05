"""The pictures of the README: `python tools/pictures.py` runs the sick example and draws what it shows.

docs/images/page.png is the page of that run in Chromium, docs/images/terminal.svg what its verdict is in a terminal.
Needs Chromium and Playwright, as the browser tests do.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from traindoctor.dashboard.server import Server, listen, make_app, url_of

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
EXAMPLE = ["examples/case_study/program.py", "--variant", "kernel"]
# So few rows leave no room for the lines that follow a run while it goes on.
ROWS, COLUMNS = 3, 80
# Of the terminal's verdict, the lines that a reader needs; the rest are lists of what passed.
MOST_LINES = 24
SIZE = {"width": 1400, "height": 960}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MOST_BYTES = 300_000
THEME = TerminalTheme(
    (26, 29, 33),
    (230, 228, 223),
    [
        (26, 29, 33),
        (255, 128, 120),
        (103, 201, 149),
        (224, 180, 85),
        (110, 168, 234),
        (197, 139, 224),
        (92, 196, 189),
        (230, 228, 223),
    ],
)


def record(folder: Path) -> str:
    """Runs the example as a user would; gives the verdict as the terminal shows it."""
    said = in_a_terminal(
        [sys.executable, "-m", "traindoctor", "run", "--out", str(folder), *EXAMPLE]
    )
    start = said.rindex("\n", 0, said.index("traindoctor: SICK"))
    return said[start + 1 :]


def in_a_terminal(command: list[str]) -> str:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    child = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the terminal is gone with its last writer
            break
        if not part:
            break
        said += part
    os.close(ours)
    child.wait()
    return said.decode().replace("\r\n", "\n")


def draw_terminal(said: str, target: Path) -> None:
    lines = said.rstrip("\n").split("\n")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ traindoctor run {' '.join(EXAMPLE)}", style="bold"))
    for line in lines[:MOST_LINES]:
        console.print(Text.from_ansi(line))
    if len(lines) > MOST_LINES:
        console.print(Text("  ...", style="dim"))
    drawn = console.export_svg(title="traindoctor", theme=THEME)
    # The fonts of rich come from another server: a README's picture loads nothing.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    target.write_text(drawn, encoding="utf-8")


def draw_page(folder: Path, target: Path) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    sock = listen(0)
    server = Server(make_app(folder))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url_of(sock))
        page.wait_for_selector(".verdict figure .legend b")
        page.wait_for_timeout(1500)
        page.screenshot(path=target)
        browser.close()
    server.should_exit = True
    thread.join(timeout=10)
    sock.close()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "loss-kernel"
        draw_terminal(record(folder), IMAGES / "terminal.svg")
        draw_page(folder, IMAGES / "page.png")
    for file in sorted(IMAGES.iterdir()):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1000:.0f} kB")
        assert file.stat().st_size < MOST_BYTES, f"{file} is too large"


if __name__ == "__main__":
    main()
