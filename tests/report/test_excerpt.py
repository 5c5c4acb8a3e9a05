"""The script's line in a verdict: from the record's own text, with two lines around it."""

from __future__ import annotations

import pytest

import made_verdicts as sample
from traindoctor.record import make_record
from traindoctor.record.script_text import redact_source
from traindoctor.report import terminal
from traindoctor.report.excerpt import excerpt

LINES = [f"line_{number} = {number}" for number in range(1, 60)]
SCRIPT = {"path": "src/train.py", "text": "\n".join(LINES)}


def test_two_lines_around_the_one_that_is_named() -> None:
    shown = excerpt(SCRIPT, "/home/somebody/train.py:54")
    assert [(number, meant) for number, _, meant in shown] == [
        (52, False),
        (53, False),
        (54, True),
        (55, False),
        (56, False),
    ]
    assert shown[2][1] == "line_54 = 54"


def test_the_first_and_the_last_line_have_fewer_neighbours() -> None:
    assert [number for number, _, _ in excerpt(SCRIPT, "train.py:1")] == [1, 2, 3]
    assert [number for number, _, _ in excerpt(SCRIPT, "train.py:59")] == [57, 58, 59]


def test_common_indentation_is_left_out_and_what_is_deeper_stays() -> None:
    text = "def f():\n    for x in y:\n\n        g(x)\n    return 1\n"
    shown = excerpt({"path": "a.py", "text": text}, "a.py:3")
    assert shown == [
        (1, "def f():", False),
        (2, "    for x in y:", False),
        (3, "", True),
        (4, "        g(x)", False),
        (5, "    return 1", False),
    ]


@pytest.mark.parametrize(
    "line", ["model.py:3", "train.py:60", "train.py:0", "train.py", "train.py:x", None]
)
def test_nothing_is_shown_of_what_the_record_does_not_hold(line: str | None) -> None:
    assert excerpt(SCRIPT, line) == []


@pytest.mark.parametrize("script", [None, {}, {"path": "train.py"}, "text", {"text": 3, "path": 4}])
def test_a_record_without_the_text_shows_nothing(script: object) -> None:
    assert excerpt(script, "train.py:3") == []


def test_secrets_over_several_lines_do_not_shift_those_after_them() -> None:
    source = 'password = """one\ntwo\nthree"""\nloss.backward()\n'
    shown, redacted = redact_source(source)
    assert redacted == 1
    meant = [one for one in excerpt({"path": "a.py", "text": shown}, "a.py:4") if one[2]]
    assert meant == [(4, "loss.backward()", True)]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_line_that_is_meant_is_whole_and_nothing_is_wider_than_the_window(width: int) -> None:
    long = "mask = torch.triu(torch.ones(length, length), diagonal=2).bool()[None, None].expand(batch, 1)"
    text = "\n".join(["# " + "x" * 200, long, "y = 1"])
    record = make_record(facts={"script.text": {"path": "train.py", "text": "\n" * 52 + text}})
    lines = terminal.report(sample.sick(), record, width=width).splitlines()
    assert max(map(len, lines)) <= width
    said = "\n".join(lines)
    assert "> " in said
    joined = "".join(part.partition("| ")[2].strip() for part in lines if "| " in part)
    assert long.replace(" ", "") in joined.replace(" ", "")
    assert "xxx..." in said
