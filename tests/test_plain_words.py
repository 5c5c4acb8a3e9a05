"""No word of the house reaches a reader: messages, pages of causes, help texts, what each test measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from traindoctor.checks import CHECKS
from traindoctor.cli import COMMANDS, cli
from traindoctor.diagnosis import explain
from traindoctor.report.checklist import HEAD
from traindoctor.report.measured import EXAMS

ROOT = Path(__file__).parents[1]

# Words of the code, turns that are no English of the field, and names of recorded series.
HOUSE = re.compile(
    r"\bexams?\b|\btape[ds]?\b|\bprobes?\b|\bhangs? on\b|\bdear\b|\bmended\b|\btaken off\b|was not recorded"
    r"|\blies? in\b|look-ups?\b|\bof torch\b|\bscores beside\b|\bway around\b|has not \d+ points"
    r"|\bblown up\b|\bgo(es)? in circles\b|\bby heart\b|\bcompany\b"
    r"|\b(loss|grad|optim|batch|order|relation|update|clip|ladder|param|logits)\."
    r"(root|token|eval|read|norm|rms|lr|state_reset|leftover_norm|rowset|rows|tokens|label_z|lost|limit)\b"
)


def found(text: str) -> list[str]:
    return [hit.group() for hit in HOUSE.finditer(text)]


@pytest.mark.parametrize("line", ["the loss.token was not recorded", "a taped step", "one exam"])
def test_the_list_catches_what_it_is_for(line: str) -> None:
    assert found(line)


def test_messages_are_plain() -> None:
    for line in (ROOT / "docs" / "messages.md").read_text(encoding="utf-8").splitlines():
        assert not found(line), line


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.slug)
def test_pages_of_causes_are_plain(check) -> None:
    for line in explain(check.slug).splitlines():
        assert not found(line), line


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_is_plain_and_fits_a_window(name: str) -> None:
    arguments = [name, "--help"] if name else ["--help"]
    output = CliRunner().invoke(cli, arguments, terminal_width=80).output
    assert "Usage: " in output
    assert not found(output)
    for line in output.splitlines():
        assert len(line) <= 80, line


def test_titles_of_tests_are_plain() -> None:
    for title, _ in EXAMS.values():
        assert not found(title), title
    assert not found(" ".join(HEAD))
