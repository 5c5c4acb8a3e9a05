"""The minimal examples: each cause has one, its page shows it, and traindoctor says of it what the page says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from traindoctor.checks import CHECKS
from traindoctor.cli import docs

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("examples_tool", ROOT / "tools" / "examples.py")
assert spec is not None
assert spec.loader is not None
examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(examples)

SCRIPTS = examples.scripts([])
# What cannot be shown on one CPU, and why.
WITHOUT = {
    "sync-every-step": "there is no device to wait for",
    "gradients-exploding": "in some fifty lines it ends in NaN at once, and nan-from-op names the operation",
}


def test_every_cause_has_an_example_or_a_reason() -> None:
    shown = {examples.cause_of(script) for script in SCRIPTS}
    assert shown | set(WITHOUT) == {check.slug for check in CHECKS}
    assert not shown & set(WITHOUT)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_is_short_and_its_verdict_names_its_cause(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60
    verdict = script.with_suffix(".txt").read_text(encoding="utf-8")
    cause = examples.cause_of(script)
    sick = verdict.startswith(f"traindoctor: SICK, {cause} (")
    assert sick or f"\n  slow       {cause}: " in verdict
    assert not re.search(r"\d ms|\d s\b|cost", verdict), "depends on the clock"


def test_pages_are_up_to_date() -> None:
    """`make docs` writes them from the docstrings, the scripts and the recorded verdicts."""
    folder = ROOT / "docs" / "checks"
    made = docs.pages(ROOT / "examples" / "causes")
    assert {file.name for file in folder.glob("*.md")} == set(made)
    for name, text in made.items():
        assert (folder / name).read_text(encoding="utf-8") == text, name


TERMINAL = """step 3 loss 2.0
traindoctor: step 1: lr-too-high confirmed: too high
traindoctor: SICK, lr-too-high (confirmed) [40 steps, cost 1.2 s, 25 %, and 3 s
of tests after the end]

lr-too-high (confirmed, confidence 0.95)
  what       The rate is too high
  proof      loss: 3 (expected 2)

  seen       the loss stays
             where it was
  passed     nan-from-op (no NaN);
             and 3 more
  next       traindoctor explain lr-too-high
  recorded in /tmp/somewhere
"""


def test_what_depends_on_the_clock_is_left_out() -> None:
    assert examples.shown(TERMINAL) == (
        "traindoctor: SICK, lr-too-high (confirmed) [40 steps]\n\n"
        "lr-too-high (confirmed, confidence 0.95)\n"
        "  what       The rate is too high\n"
        "  proof      loss: 3 (expected 2)\n\n"
        "  seen       the loss stays\n"
        "             where it was\n"
    )


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ({"causes": [{"cause": "lr-too-high", "status": "likely"}], "advice": []}, None),
        ({"causes": [], "advice": [{"cause": "lr-too-high", "status": "confirmed"}]}, None),
        (
            {"verdict": "sick", "causes": [{"cause": "no-warmup", "status": "likely"}]},
            "sick: no-warmup (likely)",
        ),
        (
            {"verdict": "inconclusive", "causes": [{"cause": "lr-too-high", "status": "possible"}]},
            "inconclusive: lr-too-high (possible)",
        ),
        ({"verdict": "healthy", "reason": "all", "causes": [], "advice": []}, "healthy: all"),
    ],
)
def test_another_verdict_is_not_recorded(verdict: dict[str, object], said: str | None) -> None:
    assert examples.complaint(verdict, "lr-too-high") == said


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_cause_is_named(script: Path) -> None:
    verdict, _ = examples.run(script)
    assert examples.complaint(verdict, examples.cause_of(script)) is None
