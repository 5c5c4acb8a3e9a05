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
    record = with_series(record, weights_crc=weights)
    assert isinstance(gradients_not_synced(record), Clear)
    assert isinstance(ranks_diverged(record), Clear)


def with_series(record: Record, **columns: list[list[float]]) -> Record:
    """The same with other numbers for each rank; `weights_crc` stands for `weights.crc`."""
    for name, by_rank in columns.items():
        real = name.replace("_", ".", 1)
        for one, numbers in zip(record.ranks, by_rank):
            one._series[real] = make_record({real: numbers})[real]
    record._made.clear()
    return record


def test_local_sgd_meets_again_between_the_sampled_steps() -> None:
    before = [
        [float(step if step % 4 == 0 else step + 99 * n) for step in range(9)] for n in (1, 2)
    ]
    record = with_series(two_ranks(**NOT_SYNCED), weights_crc_before=before)
    assert isinstance(gradients_not_synced(record), Clear)
    assert isinstance(ranks_diverged(record), Clear)


def test_an_exchange_that_fails_now_and_then_is_found() -> None:
    gradients = [[float(k if k % 2 else k + 99 * n) for k in range(STEPS)] for n in (0, 1)]
    record = with_series(two_ranks(**{**NOT_SYNCED, "gradients": True}), grad_crc=gradients)
    assert isinstance(gradients_not_synced(record), Clear)
    found = ranks_diverged(record)
    assert isinstance(found, Finding)
    assert f"at {STEPS // 2} of {STEPS} steps" in found.summary


def test_an_optimizer_that_averages_itself_is_healthy() -> None:
    record = two_ranks(**{**NOT_SYNCED, "weights": True})
    assert isinstance(gradients_not_synced(record), Clear)


def test_weights_that_one_rank_overwrites_are_found() -> None:
    after = [[float(k + 99 * n) for k in range(STEPS)] for n in (0, 1)]
    before = [[0.0, *after[0][:-1]]] * 2
    record = two_ranks(**NOT_SYNCED)
    found = gradients_not_synced(with_series(record, weights_crc=after, weights_crc_before=before))
    assert isinstance(found, Finding)
    assert "those of rank 0" in found.summary
    # An average is nobody's own.
    mean = [[0.0, *(float(k + 50) for k in range(STEPS - 1))]] * 2
    averaged = with_series(record, weights_crc=after, weights_crc_before=mean)
    assert isinstance(gradients_not_synced(averaged), Clear)


@pytest.mark.parametrize("split", [True, False])
def test_only_what_all_ranks_hold_is_compared(split: bool) -> None:
    """A model that is split by hand: one matrix is a part of its own on each rank, the norm is a replica."""

    def table(rank: int, *, part: bool, norm: bool) -> dict[str, list[float]]:
        return {
            "up": [float(k + 99 * rank * part) for k in range(STEPS)],
            "norm": [float(k + 7 + 99 * rank * norm) for k in range(STEPS)],
        }

    ranks = []
    for n in (0, 1):
        one = rank(n, start=not split, gradients=False, weights=False, data=True)
        layers = {
            "weights.crc_before_by_parameter": table(n, part=split, norm=False),
            "grad.crc_by_parameter": table(n, part=True, norm=not split),
            "weights.crc_by_parameter": table(n, part=True, norm=not split),
        }
        ranks.append(make_record(series_of(one), facts=one.facts, layers=layers))
    ranks[0].ranks = tuple(ranks)
    found = [type(check(ranks[0])) for check in (gradients_not_synced, ranks_diverged)]
    assert found == ([Clear, Clear] if split else [Finding, NotJudged])
    assert not isinstance(ranks_see_same_data(ranks[0]), Finding)


def test_weights_that_meet_now_and_then_are_no_fault_where_some_are_all_one_number() -> None:
    """A norm starts at ones on every rank: that its gradients differ does not make the other weights parts of a whole."""
    ranks = []
    for n in (0, 1):
        one = rank(n, start=True, gradients=False, weights=False, data=True)
        series = series_of(one)
        series["weights.crc_before"] = [float(k + 99 * n * (k % 8 != 0)) for k in range(STEPS)]
        apart = [float(k + 99 * n) for k in range(STEPS)]
        layers = {
            "weights.crc_before_by_parameter": {
                "up": [7.0, *apart[1:]],
                "norm": [float("nan")] * STEPS,
            },
            "grad.crc_by_parameter": {"up": apart, "norm": apart},
        }
        ranks.append(make_record(series, facts=one.facts, layers=layers))
    ranks[0].ranks = tuple(ranks)
    assert STEPS > 8
    assert isinstance(gradients_not_synced(ranks[0]), Clear)


def series_of(record: Record) -> dict[str, list[float]]:
    return {name: record[name].values.tolist() for name in record._series}


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
