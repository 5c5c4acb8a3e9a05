"""What a change did, told from two records made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from made_verdicts import LEAK
from traindoctor.checks import BY_SLUG, laws
from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.compare.verification import Verification, verified
from traindoctor.diagnosis import Diagnosis, Run, judge
from traindoctor.record import Record, RecordWriter, open_record


def found(cause: str) -> Finding:
    return BY_SLUG[cause].finding(grade="exact", since_step=0)


def run(
    folder: Path, end: float, outcomes: Sequence[Outcome], batch: int = 7
) -> tuple[Record, Diagnosis]:
    writer = RecordWriter(folder)
    for step in range(40):
        loss = end + (0.01 if step % 2 else -0.01)
        writer.scalars(step, {"loss.root": loss, "batch.fingerprint": float(batch)})
    writer.close()
    return open_record(folder), judge(outcomes, Run(steps=40))


def verify(
    tmp_path: Path,
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    *,
    ends: tuple[float, float] = (3.0, 2.0),
    batches: tuple[int, int] = (7, 7),
    fixes: dict[str, str] | None = None,
    text: str = "",
) -> Verification:
    a = run(tmp_path / "a", ends[0], before, batches[0])
    b = run(tmp_path / "b", ends[1], after, batches[1])
    causes = [replace(one, fix=(fixes or {}).get(one.finding.cause)) for one in a[1].causes]
    a = a[0], replace(a[1], causes=tuple(causes))
    return verified(a, b, patch="p.diff", text=text, against=tmp_path / "a")


ZERO, STEP = "missing-zero-grad", "optimizer-state-reset"


def test_a_law_that_holds_and_what_the_loss_gained(tmp_path: Path) -> None:
    made = verify(tmp_path, [found(ZERO)], [Clear(ZERO, "it is clean")])
    assert (made.cause, made.before, made.after, made.holds) == (
        ZERO,
        "broken (confirmed)",
        "holds",
        True,
    )
    assert made.loss is not None
    assert made.loss.gained == pytest.approx(1.0)
    assert made.said == (
        f"the law now holds (missing-zero-grad: {laws.FRESH}); "
        "the training loss ends at 2 instead of 3 (mean of steps 36 to 39)"
    )
    assert made.as_dict()["new"] == []


def test_a_law_that_is_still_broken_and_what_is_new(tmp_path: Path) -> None:
    made = verify(tmp_path, [found(ZERO)], [found(ZERO), LEAK], ends=(3.0, 3.5))
    assert (made.holds, made.new) == (False, ("causal-mask-leak",))
    assert made.loss is not None
    assert made.loss.gained == pytest.approx(-0.5)
    assert made.said.startswith("it is still broken (confirmed) (missing-zero-grad")
    assert "new with the change: causal-mask-leak" in made.said


def test_what_no_test_decides_is_told_so(tmp_path: Path) -> None:
    made = verify(tmp_path, [found(ZERO)], [NotJudged(ZERO, "no time", why="no-time")])
    assert made.holds is None
    assert "could not be tested" in made.said


def test_nothing_was_wrong(tmp_path: Path) -> None:
    made = verify(tmp_path, [Clear(ZERO, "it is clean")], [Clear(ZERO, "it is clean")])
    assert (made.cause, made.holds) == (None, None)
    assert "nothing was proven to be wrong" in made.said


def test_without_a_verdict_on_the_run_before_nothing_is_known(tmp_path: Path) -> None:
    made = verify(tmp_path, [NotJudged(ZERO, "no time", why="no-time")], [Clear(ZERO, "clean")])
    assert (made.cause, made.holds) == (None, None)
    assert "has no verdict (no time was left to test missing-zero-grad)" in made.said


def test_of_several_causes_it_is_the_one_whose_fix_this_is(tmp_path: Path) -> None:
    both = [found(ZERO), LEAK]
    still = [found(ZERO), Clear("causal-mask-leak", "no leak")]
    fixes = {ZERO: "--- one\n", "causal-mask-leak": "--- other\n"}
    made = verify(tmp_path / "a", both, still, fixes=fixes, text="--- other")
    assert (made.cause, made.holds) == ("causal-mask-leak", True)
    made = verify(tmp_path / "b", both, still, fixes=fixes, text="--- one\n")
    assert (made.cause, made.holds) == (ZERO, False)
    # Of a patch that is nobody's: what is gone.
    made = verify(tmp_path / "c", both, still)
    assert (made.cause, made.holds) == ("causal-mask-leak", True)


def test_losses_of_two_tasks_are_not_compared(tmp_path: Path) -> None:
    made = verify(tmp_path, [LEAK], [Clear(LEAK.cause, "no leak")], ends=(0.5, 2.0))
    assert made.loss is not None
    assert made.loss.gained is None
    assert "two numbers that cannot be compared: before, the answer could be seen" in made.said


def test_other_batches_and_a_loss_that_is_no_number(tmp_path: Path) -> None:
    gone = [Clear(ZERO, "it is clean")]
    made = verify(tmp_path / "a", [found(ZERO)], gone, batches=(7, 8))
    assert made.loss is not None
    assert made.loss.remark is not None
    assert "a part of the difference is chance" in made.loss.remark
    made = verify(tmp_path / "b", [found(ZERO)], gone, ends=(math.nan, 2.0))
    assert made.loss is not None
    assert made.loss.gained is None
    assert made.as_dict()["loss"]["before"] == "nan"
