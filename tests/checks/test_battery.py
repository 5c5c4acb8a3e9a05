"""One battery for all checks: a new one joins by its file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import traindoctor.checks as checks_package
from traindoctor.checks import BY_SLUG, CHECKS, FAMILIES
from traindoctor.checks.base import Check, Finding, NotJudged, evidence
from traindoctor.record import Record, make_record

HOME = Path(checks_package.__file__).parent
PREFIX = {
    "data": "DAT",
    "loss": "LOS",
    "gradient": "GRD",
    "optimizer": "OPT",
    "model": "MOD",
    "numerics": "NUM",
    "generalisation": "OVF",
    "speed": "SPD",
    "generation": "GEN",
    "distributed": "DST",
}
SECTIONS = ["## What it does", "## Why it matters", "## How to fix", "## When it stays silent"]

every_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.slug)


def healthy_record() -> Record:
    """A run that learns: falling loss, calm gradients, a warm-up, nothing else known."""
    rng = np.random.default_rng(1)
    steps = np.arange(200)
    loss = 2.2 + 2.4 * np.exp(-steps / 50) + rng.normal(0, 0.03, 200)
    series = {
        "loss.root": loss,
        "loss.read": loss,
        "loss.token": loss,
        "optim.lr": 1e-3 * np.minimum(1, (steps + 1) / 20),
        "grad.norm": 0.6 + rng.uniform(0, 0.3, 200),
        "grad.norm_clipped": 0.6 + np.zeros(200),
        "clip.limit": np.ones(200),
        "clip.calls": np.ones(200),
        "grad.leftover_norm": np.zeros(200),
        "grad.nonfinite": np.zeros(200),
        "param.nonfinite": np.zeros(200),
        "backward.calls": np.ones(200),
        "forward.calls": np.ones(200),
        "batch.rows": np.full(200, 16.0),
        "batch.tokens": np.full(200, 512.0),
        "batch.fingerprint": rng.integers(0, 2**32, 200).astype(float),
        "batch.rowset": rng.integers(0, 2**32, 200).astype(float),
        "target.valid": np.full(200, 512.0),
        "target.total": np.full(200, 512.0),
        "ladder.unigram": np.full(200, 3.2),
        "ladder.bigram": np.full(200, 2.4),
        "ladder.fivegram": np.full(200, 1.2),
        "time.step": np.full(200, 0.05),
        "time.data": np.full(200, 0.001),
        "time.loader": np.full(200, 0.001),
        "memory.rss": np.full(200, 4e8),
        "graphs.alive": np.ones(200),
        "graphs.old": np.zeros(200),
        "mode.training": np.ones(200),
        "logits.absmax": np.linspace(1, 8, 200),
    }
    facts = {"run.steps": 200, "run.backwards": 200, "run.ended": 0, "run.seconds": 12.0}
    return make_record({name: values.tolist() for name, values in series.items()}, facts=facts)


def test_codes_and_slugs_are_unique() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    assert len(BY_SLUG) == len(CHECKS)


@pytest.mark.parametrize("family", FAMILIES)
def test_codes_carry_their_family(family: str) -> None:
    for check in FAMILIES[family]:
        assert re.fullmatch(PREFIX[family] + r"\d{3}", check.code), check.slug


@pytest.mark.parametrize("family", FAMILIES)
def test_slug_is_the_file_name(family: str) -> None:
    for check in FAMILIES[family]:
        file = HOME / family / f"{check.slug.replace('-', '_')}.py"
        assert file.is_file(), f"{check.slug} should stand in {file.name}"


@every_check
def test_docs_have_their_sections_in_order(check: Check) -> None:
    places = [check.docs.find(section) for section in SECTIONS]
    assert min(places) >= 0, f"{check.slug} lacks {SECTIONS[places.index(-1)]}"
    assert places == sorted(places)


@every_check
def test_title_is_one_short_sentence(check: Check) -> None:
    assert 10 <= len(check.title) <= 120
    assert not check.title.endswith(".")
    assert check.title[0].isupper()


@every_check
def test_remedy_says_something(check: Check) -> None:
    assert len(check.remedy) >= 20


@every_check
def test_silent_on_an_empty_record(check: Check) -> None:
    outcome = check(make_record())
    assert isinstance(outcome, NotJudged), outcome


@every_check
def test_silent_on_a_healthy_record(check: Check) -> None:
    with np.errstate(all="ignore"):
        outcome = check(healthy_record())
    assert not isinstance(outcome, Finding) or outcome.status == "possible", outcome


@every_check
def test_outcome_names_its_own_cause(check: Check) -> None:
    assert check(healthy_record()).cause == check.slug
    assert check(make_record()).cause == check.slug


def test_thresholds_have_a_reason() -> None:
    """Each module constant of a check that is a number stands under or beside a comment."""
    for file in HOME.rglob("*.py"):
        if file.stem in ("__init__", "base"):
            continue
        lines = file.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
                continue
            if isinstance(node.value.value, str | bool):
                continue
            begin = node.lineno
            while begin > 0 and lines[begin - 1].strip():
                begin -= 1  # a block without a blank line shares its comment
            above = lines[begin : node.lineno]
            assert any("#" in line for line in above), f"{file.name}:{node.lineno} gives no reason"


@pytest.mark.parametrize("check", [c for c in CHECKS if c.law is None], ids=lambda c: c.slug)
def test_what_breaks_no_law_and_has_no_cure_is_never_confirmed(check: Check) -> None:
    for grade in ("exact", "statistic", "curve"):
        found = check.finding(evidence("x", 2.0, 1.0), grade=grade)
        assert found.status != "confirmed"
        assert (found.status == "likely") == (found.undecided is not None)
        assert found.proof == "symptom"
        assert found.law is None
    assert check.finding(evidence("x", 2.0, 1.0), grade="experiment").status == "confirmed"


@pytest.mark.parametrize("check", [c for c in CHECKS if c.law is not None], ids=lambda c: c.slug)
def test_a_broken_law_is_confirmed_and_named(check: Check) -> None:
    found = check.finding(evidence("x", 2.0, 1.0), grade="exact")
    assert (found.status, found.proof, found.law) == ("confirmed", "law", check.law)
