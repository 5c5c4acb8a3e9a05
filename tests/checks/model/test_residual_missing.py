from __future__ import annotations

from typing import Any

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.model.residual_missing import residual_missing
from traindoctor.record import make_record

OPEN = [{"through": 0.3, "around": 1.0, "module": "b", "line": None}] * 4


def judge(**values: Any) -> Outcome:
    usual = {"attentions": 2, "attentions_bypassed": 2, "activations": 2, "activations_bypassed": 2}
    usual |= {"summands": OPEN, "without": [], "line": "train.py:9"}
    return residual_missing(make_record(exams={"residual": usual | values}))


def test_fires_without_any_sum_around_attention() -> None:
    found = judge(attentions=4, attentions_bypassed=0, summands=[], without=["blocks.0.attn"])
    assert isinstance(found, Finding)
    assert (found.status, found.where) == ("likely", "blocks.0.attn")


def test_two_attentions_without_a_sum_are_suspected_only_where_nothing_is_learned() -> None:
    values = {"attentions": 2, "attentions_bypassed": 0, "activations": 3}
    values |= {"activations_bypassed": 0, "summands": [], "without": ["attn"], "line": None}

    def judge(losses: list[float]) -> Outcome:
        return residual_missing(make_record({"loss.root": losses}, exams={"residual": values}))

    assert isinstance(judge([1.9 * 0.97**step for step in range(80)]), Clear)
    stuck = judge([1.9] * 80)
    assert isinstance(stuck, Finding)
    assert stuck.status == "possible"
    assert isinstance(judge([1.9] * 10), NotJudged)


def test_heads_side_by_side_are_no_stack() -> None:
    values = {"attentions": 9, "depth": 2, "attentions_bypassed": 0, "activations": 3}
    values |= {"activations_bypassed": 0, "summands": [], "without": ["attn"], "line": None}
    learns = make_record(
        {"loss.root": [1.9 * 0.97**step for step in range(80)]}, exams={"residual": values}
    )
    assert isinstance(residual_missing(learns), Clear)
    deep = make_record(
        {"loss.root": [1.9 * 0.97**step for step in range(80)]},
        exams={"residual": values | {"depth": 9}},
    )
    assert isinstance(residual_missing(deep), Finding)


def test_fires_when_the_way_around_is_closed() -> None:
    closed = [{"through": 1.0, "around": 0.0, "module": "blocks.0", "line": None}] * 4
    assert isinstance(judge(summands=closed), Finding)


def test_fires_when_only_the_mlp_lacks_it() -> None:
    assert isinstance(judge(activations_bypassed=0, depth=4), Finding)


def test_other_layers_beside_two_attentions_are_no_stack() -> None:
    """A convolutional generator and its critic, each with one gated attention in it."""
    assert isinstance(judge(activations=6, activations_bypassed=0, depth=2), Clear)


def test_silent_on_sound_stacks_pooling_and_single_attentions() -> None:
    assert isinstance(judge(), Clear)
    assert isinstance(judge(attentions=3), Clear)  # a pooling attention without one
    assert isinstance(judge(attentions=1, attentions_bypassed=0), NotApplicable)
    zero_branch = [{"through": 0.0, "around": 1.0, "module": "b", "line": None}] * 4
    assert isinstance(judge(summands=zero_branch), Clear)  # ReZero at its first step


def gated(carry: float, losses: list[float]) -> Outcome:
    mixed = [{"through": 0.4, "around": 0.002, "carry": carry, "module": "b.g", "line": None}] * 8
    values = {"attentions": 4, "attentions_bypassed": 4, "activations": 4}
    values |= {"activations_bypassed": 4, "summands": mixed, "without": [], "line": None}
    return residual_missing(make_record({"loss.root": losses}, exams={"residual": values}))


def test_gates_that_are_nearly_shut_where_the_loss_stays() -> None:
    flat = [1.8] * 80
    found = gated(0.007, flat)
    assert isinstance(found, Finding)
    assert (found.status, found.where) == ("likely", "b.g")
    assert isinstance(gated(0.8, flat), Clear)
    assert isinstance(gated(0.007, [1.8 * 0.97**step for step in range(80)]), Clear), "it learns"
    assert isinstance(gated(0.007, flat[:10]), NotJudged)
