"""Text reports are compared whole, at fixed widths; UPDATE_SNAPSHOTS=1 rewrites them."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest

import made_verdicts as sample
from traindoctor.record import ExamResult
from traindoctor.report import checklist, first_rows, markdown, next_steps, terminal

HERE = Path(__file__).parent
SNAPSHOTS = HERE.parent / "snapshots"


CASES = {"sick": sample.sick, "healthy": sample.healthy, "inconclusive": sample.inconclusive}


def compare(text: str, name: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [60, 80])
def test_terminal(case: str, width: int) -> None:
    compare(terminal.report(CASES[case](), width=width), f"terminal-{case}-{width}.txt")


@pytest.mark.parametrize(("percent", "said"), [(1.234, "1.2 %"), (21.87, "22 %"), (9.96, "10 %")])
def test_the_cost_is_told_in_seconds_and_as_a_share(percent: float, said: str) -> None:
    short = replace(CASES["sick"](), overhead_percent=percent, overhead_seconds=1.34)
    assert f"cost       1.3 s while the script ran ({said})" in terminal.report(short, width=120)


@pytest.mark.parametrize("case", CASES)
def test_checklist(case: str) -> None:
    asked = {"dependence": {"causal-mask-leak"}, "tape_gradient": {"backward-incorrect"}}
    exams = [
        ExamResult("tape_gradient", 0, "done", {"difference": 2.5e-8, "noise": 9.5e-7}),
        ExamResult("positions", 0, "refused", {}, "a next-token model"),
        ExamResult("overfit_batch", 0, "done", {"of another": "version"}),
    ]
    table = checklist.lines(CASES[case](), asked, exams, ["precision_ladder"])
    text = checklist.report(CASES[case](), asked, table, width=110)
    compare(text, f"checklist-{case}.txt")


@pytest.mark.parametrize("case", CASES)
def test_markdown(case: str) -> None:
    compare(markdown.report(CASES[case]()), f"markdown-{case}.md")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("width", [10, 40, 57, 80, 120])
def test_no_line_is_wider_than_the_window(case: str, width: int) -> None:
    lines = terminal.report(CASES[case](), width=width).splitlines()
    assert max(map(len, lines)) <= max(width, terminal.MIN_WIDTH)


def test_a_file_gets_plain_text() -> None:
    stream = io.StringIO()
    terminal.show(sample.sick(), stream)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().startswith("traindoctor: SICK, causal-mask-leak (confirmed)")


def test_a_terminal_gets_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal.show(sample.sick(), stream)
    assert "\x1b[1;31m" in stream.getvalue()


def test_the_home_folder_of_the_user_is_not_told() -> None:
    assert "/home/somebody" not in terminal.report(sample.sick())
    assert "train.py:54" in terminal.report(sample.sick())


def test_the_first_sequence_is_shown_as_text_or_numbers() -> None:
    pair = {"first_inputs": [7, 4, 11], "first_targets": [4, 11, -100]}
    exams = [ExamResult("shift", 0, "done", {"pairs": [pair]})]
    letters = first_rows.find_decoder({"decode": lambda ids: "".join(chr(97 + i) for i in ids)})
    assert first_rows.report(exams, letters) == "first inputs   'hel'\nfirst targets  'el'\n"
    assert first_rows.report(exams, None).startswith("first inputs   7 4 11\n")
    # A decoder of the user's that fails costs nothing but the text.
    assert "7 4 11" in first_rows.report(exams, lambda ids: {}[ids[0]])
    assert first_rows.report([], letters) == ""
    assert first_rows.find_decoder({"text": "encode and decode are methods of str, too"}) is None


def test_a_fix_stands_below_what_to_change_and_what_it_did_on_top() -> None:
    diff = "--- a/x.py\n+++ b/x.py\n@@ -3,4 +3,5 @@\n a\n b\n-    c(1)\n+    c(2)\n+    d()\n e\n@@ -20 +21 @@\n-f\n+g\n"
    made = sample.sick()
    cause = replace(made.causes[0], fix=diff)
    made = replace(made, causes=(cause,), reproduce="traindoctor run -m x --y")
    text = terminal.report(made)
    lines = text[text.index("  diff  ") :].splitlines()[:7]
    assert [line[13:] for line in lines] == [
        "line 5:", "-    c(1)", "+    c(2)", "+    d()", "line 20:", "-f", "+g",
    ]  # fmt: skip
    told = terminal.report(replace(made, verified={"said": "the law now holds"}))
    assert "\n  verified   the law now holds\n" in told
    steps = next_steps.next_steps(made, Path("runs/x").absolute())
    assert "traindoctor run --verify-fix runs/x/fix.diff -m x --y" in steps
