from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.causal_mask_leak import causal_mask_leak
from traindoctor.record import make_record


def judge(series: dict[str, list[float]] | None = None, **values: Any) -> Outcome:
    usual = {"expects_causal": True, "finite": True, "future": 0.0, "reach": 1, "other_rows": 0.0}
    return causal_mask_leak(
        make_record(series, exams={"dependence": {"pairs": [usual | values], "attentions": 2}})
    )


def test_fires_on_a_leak_and_names_where() -> None:
    found = judge(future=0.29, leaking_module="blocks.0.attn", leaking_line="train.py:31")
    assert isinstance(found, Finding)
    assert (found.status, found.where, found.line) == ("confirmed", "blocks.0.attn", "train.py:31")


def test_a_loss_below_the_five_gram_is_second_evidence() -> None:
    series = {"loss.token": [0.2] * 40, "ladder.fivegram": [1.5] * 40, "batch.new_rows": [1.0] * 40}
    found = judge(series, future=0.29)
    assert isinstance(found, Finding)
    assert len(found.evidence) == 2


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"future": 2e-6},  # a mask of -20 instead of -inf
        {"future": 0.7, "expects_causal": False},  # an encoder
        {"future": 0.04, "other_rows": 0.1, "mixing_op": "batch_norm"},  # another cause
    ],
)
def test_silent_on_look_alikes(values: dict[str, Any]) -> None:
    assert isinstance(judge(**values), Clear)


def test_a_softmax_over_the_batch_leaks_too() -> None:
    assert isinstance(judge(future=0.04, other_rows=0.1, mixing_op="softmax"), Finding)


def test_nan_is_not_judged() -> None:
    assert isinstance(judge(finite=False), NotJudged)


def judge_two(source: dict[str, float] | None = None, **values: Any) -> Outcome:
    """A source that is read freely, and the tokens of a decoder."""
    usual = {"expects_causal": True, "finite": True, "reach": 1, "other_rows": 0.0}
    first = usual | {"loss": 7, "future": 0.8, "after": 0.9} | (source or {})
    decoder = usual | {"loss": 7, "future": 0.0, "after": 0.5} | values
    return causal_mask_leak(make_record(exams={"dependence": {"pairs": [first, decoder]}}))


def test_a_source_may_hold_the_targets_where_the_decoder_hides_its_own() -> None:
    assert isinstance(judge_two(), Clear)
    assert isinstance(judge_two(future=0.3), Finding)
    # Two tables of the same tokens, both hidden until their turn.
    assert isinstance(judge_two(source={"future": 0.0}), Clear)
    # Tokens that change nothing, or another loss's, excuse nothing.
    assert isinstance(judge_two(after=0.0), Finding)
    assert isinstance(judge_two(loss=9), Finding)
