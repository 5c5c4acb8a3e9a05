"""Every snippet of docs/agents.md and of the AGENTS.md in the wheel, run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import traindoctor

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "agents.md"
SHIPPED = Path(traindoctor.__file__).with_name("AGENTS.md")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Healthy, sick, inconclusive: 2 is wrong use, 127 a command that is not there.
STATUSES = (0, 1, 3)


def blocks(file: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(file.read_text(encoding="utf-8"))


def environment() -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def script() -> str:
    return next(text for kind, text in blocks(PAGE) if kind == "python")


def run(command: list[str], folder: Path) -> int:
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode in STATUSES, done.stderr
    return done.returncode


def contains(whole: Any, part: Any) -> bool:
    """Everything that the page shows is in the real answer."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) >= len(part) and all(contains(w, p) for w, p in zip(whole, part))
    return bool(whole == part)


@pytest.mark.slow
def test_the_page_is_what_happens(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script())
    shown = [json.loads(text) for kind, text in blocks(PAGE) if kind == "json"]
    for kind, text in blocks(PAGE):
        if kind == "bash":
            for line in text.splitlines():
                run(["bash", "-c", line], tmp_path)
    verdict, fixed = (
        json.loads((tmp_path / f).read_text()) for f in ("verdict.json", "fixed.json")
    )
    # The two runs have a folder of their own; the page shows the plain command.
    assert contains(verdict, shown[0])
    assert contains(fixed, shown[1])
    assert json.loads((tmp_path / "again.json").read_text())["verdict"] == "sick"
    loop = [text for kind, text in blocks(PAGE) if kind == "python"][1]
    assert run([sys.executable, "-c", loop], tmp_path) == 0
    assert "optimizer.zero_grad()" in (tmp_path / "train.py").read_text()


@pytest.mark.slow
def test_the_shipped_file_is_what_happens(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script())
    for kind, text in blocks(SHIPPED):
        assert kind == "bash"
        for line in text.splitlines():
            run(["bash", "-c", line], tmp_path)
    fixed = json.loads((tmp_path / "fixed.json").read_text())
    assert fixed["verified"]["holds"] is True


def test_each_configuration_starts_the_server(tmp_path: Path) -> None:
    commands = []
    for kind, text in blocks(PAGE):
        made = json.loads(text) if kind == "json" else tomllib.loads(text) if kind == "toml" else {}
        for key in ("mcpServers", "servers", "mcp_servers"):
            if key in made:
                server = made[key]["traindoctor"]
                commands.append([server["command"], *server["args"]])
    assert len(commands) == 3
    (command,) = {tuple(one) for one in commands}
    assert run([*command, "--help"], tmp_path) == 0
    # At the end of its input it ends, and has printed nothing.
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_page_names_every_tool_and_every_fix() -> None:
    from traindoctor.fixes import FIXES

    text = PAGE.read_text(encoding="utf-8")
    server = (ROOT / "src" / "traindoctor" / "agents" / "server.py").read_text()
    tools = re.findall(r"@server\.tool\(\)\n(?: *@told\n)? *(?:async )?def (\w+)", server)
    assert len(tools) == 8
    assert all(f"`{tool}(" in text for tool in tools)
    rows = re.findall(r"^\| ([a-z-]+) \|", text.partition("### When there is a diff")[2], re.M)
    assert [row for row in rows if row in FIXES] == list(FIXES)
