"""The README and the pages behind it: links lead somewhere, commands exist, figures are those of their pages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from traindoctor.cli import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Options are checked where a page shows a whole command line of ours.
SHOWN = re.compile(r"^\$ (?:[^\n]*-m )?(traindoctor [^\n#]*)", re.MULTILINE)
CONTEXT = click.Context(cli)
COMMANDS = set(cli.list_commands(CONTEXT))


def options_of(command: str) -> set[str]:
    found = cli.get_command(CONTEXT, command)
    assert found is not None
    return {name for parameter in found.params for name in parameter.opts}


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert "://" in target or (ROOT / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    for line in SHOWN.findall(page.read_text(encoding="utf-8")):
        words = shlex.split(line)[1:]
        assert words[0] in COMMANDS, line
        known = options_of(words[0])
        for word in words[1:]:
            if not word.startswith("-") or word == "-m" or word.endswith(".py"):
                break  # what follows belongs to the script
            assert word in known, line


def test_commands_in_the_readme_exist() -> None:
    named = set(re.findall(r"^traindoctor ([a-z]+)|`traindoctor ([a-z]+)", README, re.MULTILINE))
    assert {a or b for a, b in named} <= COMMANDS


def test_scripts_that_pages_run_exist() -> None:
    for page in PAGES:
        for script in re.findall(
            r"(?<![\w/])examples/[\w/]+\.py", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / script).exists(), f"{page.name}: {script}"


def test_figures_are_those_of_their_pages() -> None:
    healthy = (ROOT / "docs" / "healthy.md").read_text(encoding="utf-8")
    row = re.search(r"\| all \| (\d+) \| (\d+) \| (\d+) \([^)]*\) \| (\d+) \|", healthy)
    assert row is not None
    runs, sound, open_ones, sick = row.groups()
    assert f"{sound} of {runs}; {open_ones} inconclusive, {sick} called sick" in README


@pytest.mark.slow
def test_the_first_commands_give_the_verdict(tmp_path: Path) -> None:
    script, own = re.findall(r"^\.venv/bin/traindoctor run (\S+)", README, re.MULTILINE)
    assert own == "train.py"
    command = [sys.executable, "-m", "traindoctor", "run", "--after", "1", str(ROOT / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "SICK, missing-zero-grad (confirmed)" in done.stderr
