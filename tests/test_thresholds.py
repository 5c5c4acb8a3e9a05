"""One table of thresholds: no number without a name in a comparison of a check, none without a reason, the page up to date."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
thresholds = importlib.import_module("thresholds")

# Counts that say what a thing is, not how much of it there must be: none, one, a pair (and so a half).
STRUCTURE = {0, 1, 2}
FILES = sorted((ROOT / "src" / "traindoctor" / "checks").rglob("*.py"))


def compared_numbers(tree: ast.AST) -> list[str]:
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        for part in sides(side)
        if isinstance(part, ast.Constant)
        and type(part.value) in (int, float)
        and part.value not in STRUCTURE
    ]


def sides(node: ast.AST) -> list[ast.AST]:
    """The node and all below it, but for how a series is cut: that is a count of points."""
    if isinstance(node, ast.Slice) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    ):
        return []
    return [node, *(part for child in ast.iter_child_nodes(node) for part in sides(child))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_bare_number_in_a_comparison(file: Path) -> None:
    assert not compared_numbers(ast.parse(file.read_text(encoding="utf-8")))


def test_a_bare_number_would_be_found() -> None:
    assert compared_numbers(ast.parse("if share > 0.3 * whole: pass"))
    assert not compared_numbers(ast.parse("if 2 * share > whole and shift == 2: pass"))


def test_every_number_has_a_reason() -> None:
    assert not [row.key for row in thresholds.rows() if not row.reason]
    assert len({row.key for row in thresholds.rows()}) == len(thresholds.rows())


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "thresholds.md").read_text(encoding="utf-8")
    assert page == thresholds.page(), "run `make docs`"


def test_what_was_measured_belongs_to_numbers_that_are_there() -> None:
    """A number that was renamed has to be measured again, or its row in corpus/thresholds.json renamed with it."""
    measured = json.loads(thresholds.MEASURED.read_text(encoding="utf-8"))
    assert set(measured) <= {row.key for row in thresholds.rows()}


def test_a_number_remembers_what_it_is_compared_with() -> None:
    seen: list[float] = []
    limit = thresholds.remembering(0.5, seen)
    assert 0.7 > limit
    assert not limit >= np.float64(0.6)
    assert seen == [0.7, 0.6]
    seen.clear()
    assert list(np.array([0.2, 0.9]) > limit) == [False, True]
    assert seen == [0.2, 0.9]


def test_it_remembers_in_its_own_unit() -> None:
    """Three times the limit above 10, compared with 13: the limit would have been met at 1."""
    seen: list[float] = []
    limit = thresholds.remembering(0.5, seen)
    assert 13 > 10 + 3 * limit
    assert 13 > 10 + np.float64(3.0) * limit
    assert -1.5 < -3 * limit * 0.1
    assert seen == pytest.approx([1.0, 1.0, 5.0])


def test_two_numbers_that_meet_say_nothing_of_a_run() -> None:
    one, two = [], []
    assert max(thresholds.remembering(0.5, one), thresholds.remembering(2, two)) == 2
    assert not one
    assert not two
