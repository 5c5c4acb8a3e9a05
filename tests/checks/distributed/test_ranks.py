"""The decision table of two ranks: three fingerprints, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks.base import Check, Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.data.ranks_see_same_data import ranks_see_same_data
from traindoctor.checks.distributed.gradients_not_synced import gradients_not_synced
from traindoctor.checks.distributed.ranks_diverged import ranks_diverged
from traindoctor.record import Record, make_record

STEPS = 12


def rank(
    number: int, *, start: bool, gradients: bool, weights: bool, data: bool, **facts: Any
) -> Record:
    """One of two ranks; each flag says whether it has the same numbers as the other."""

    def numbers(same: bool) -> list[float]:
        return [float(step if same else step + 1000 * number) for step in range(STEPS)]

    return make_record(
        {
            "weights.crc_before": numbers(start)[:1],
            "grad.crc": numbers(gradients),
            "weights.crc": numbers(weights),
            "batch.fingerprint": numbers(data),
        },
        facts={"ranks": {"rank": number, "world": 2, **facts}, "model.parameters": []},
    )


def two_ranks(**flags: Any) -> Record:
    ranks = [rank(number, **flags) for number in (0, 1)]
    ranks[0].ranks = tuple(ranks)
    return ranks[0]


NOT_SYNCED = {"start": True, "gradients": False, "weights": False, "data": False}
DIVERGED = {"start": False, "gradients": True, "weights": False, "data": False}
SAME_DATA = {"start": True, "gradients": True, "weights": True, "data": True}
HEALTHY = {"start": True, "gradients": True, "weights": True, "data": False}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (NOT_SYNCED, gradients_not_synced),
        (DIVERGED, ranks_diverged),
        (SAME_DATA, ranks_see_same_data),
        (HEALTHY, None),
    ],
)
def test_each_fault_has_one_name(flags: dict[str, bool], named: Check | None) -> None:
    record = two_ranks(**flags)
    for check in (gradients_not_synced, ranks_diverged, ranks_see_same_data):
        outcome = check(record)
        assert isinstance(outcome, Finding) == (check is named), outcome
        if check is named:
            assert outcome.status == "confirmed"


def test_independent_runs_are_not_proven_to_be_replicas() -> None:
    finding = gradients_not_synced(two_ranks(**{**NOT_SYNCED, "start": False}))
    assert isinstance(finding, Finding)
    assert finding.status == "likely"


def test_sharded_parameters_are_not_compared() -> None:
    record = two_ranks(**NOT_SYNCED, sharded=4)
    assert isinstance(gradients_not_synced(record), NotJudged)
    assert isinstance(ranks_diverged(record), NotJudged)


def test_local_sgd_meets_again() -> None:
    record = two_ranks(**NOT_SYNCED)
    weights = [
        [float(step if step % 4 == 3 else step + 1000 * n) for step in range(STEPS)] for n in (0, 1)
    ]
    for one, numbers in zip(record.ranks, weights):
        one._series["weights.crc"] = make_record({"weights.crc": numbers})["weights.crc"]
    assert isinstance(gradients_not_synced(record), Clear)
    assert isinstance(ranks_diverged(record), Clear)


def test_repeated_examples_at_an_epochs_end_are_no_fault() -> None:
    record = two_ranks(**HEALTHY)
    fingerprints = [
        [float(step if step >= 10 else step + 1000 * n) for step in range(STEPS)] for n in (0, 1)
    ]
    for one, numbers in zip(record.ranks, fingerprints):
        one._series["batch.fingerprint"] = make_record({"b": numbers})["b"]
    assert isinstance(ranks_see_same_data(record), Clear)


def test_one_process_has_no_ranks_to_compare() -> None:
    for check in (gradients_not_synced, ranks_diverged, ranks_see_same_data):
        watched = make_record({"loss.root": [1.0]}, facts={"env": {"device": "cpu"}})
        assert isinstance(check(watched), NotApplicable)
