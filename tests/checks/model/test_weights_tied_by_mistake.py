from __future__ import annotations

from typing import Any

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.weights_tied_by_mistake import weights_tied_by_mistake
from traindoctor.record import make_record


def judge(**values: Any) -> Outcome:
    usual = {"listed": [], "tied": [], "reused": [], "matrices": 12}
    return weights_tied_by_mistake(make_record(exams={"sharing": usual | values}))


def test_fires_on_one_block_listed_six_times() -> None:
    row = {"modules": ["blocks.0", "blocks.1", "blocks.2"], "times": 6, "of": 6}
    found = judge(listed=[row])
    assert isinstance(found, Finding)
    assert (found.status, found.where) == ("likely", "blocks.0")


def test_one_block_at_several_depths_is_only_possible() -> None:
    row = {"modules": ["rounds.0", "rounds.1", "rounds.2"], "times": 3, "of": 3, "in_depth": True}
    found = judge(listed=[row])
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_fires_on_one_projection_under_three_names() -> None:
    row = {"modules": ["attn.query", "attn.key", "attn.value"], "uses": 3}
    found = judge(aliased=[row])
    assert isinstance(found, Finding)
    assert "attn.query" in found.summary


def test_a_matrix_under_two_names_is_possible() -> None:
    found = judge(tied=[["a.q.weight", "a.k.weight"]])
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_silent_on_a_loop_over_one_block() -> None:
    assert isinstance(judge(), Clear)
    assert isinstance(judge(reused=[{"parameter": "block.q.weight", "uses": 6}]), Clear)


def test_fires_on_shallow_copies() -> None:
    found = judge(copied=[{"modules": ["layers.0.attn", "layers.1.attn"], "times": 9}])
    assert isinstance(found, Finding)
    assert (found.status, found.where) == ("likely", "layers.0.attn")
    assert "deepcopy" in found.remedy
