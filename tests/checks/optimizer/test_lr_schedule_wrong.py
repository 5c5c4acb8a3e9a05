from __future__ import annotations

import math

import numpy as np
import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.optimizer.lr_schedule_wrong import EXAM, lr_schedule_wrong
from traindoctor.record import ExamResult, Record, Series, make_record

FLAT = [3.3] * 240


def experiment(highest: float) -> dict:
    def one(loss: float) -> dict:
        return {"loss": loss, "blown": False, "losses": []}

    return {
        "start": 180,
        "steps": 20,
        "before": 3.3,
        "control": one(3.3),
        "permuted": [one(3.3), one(3.3)],
        "variants": {"highest rate": one(highest)},
        "fidelity": 0.0,
    }


def record(rates, *, highest=None, schedule=None, initial=None, losses=None) -> Record:
    groups = [{"class": "Adam", "groups": [{"lr": rates[0], "initial_lr": initial}]}]
    return make_record(
        {"optim.lr": rates, "loss.token": losses or FLAT[: len(rates)]},
        facts={"schedule": schedule or [], "optimizer.groups": groups},
        exams={} if highest is None else {EXAM: experiment(highest)},
    )


def stepped(calls: int, **more) -> list[dict]:
    return [{"class": "ExponentialLR", "calls": calls, "since_step": 0, **more}]


def gone(steps: int = 240) -> list[float]:
    return [2e-3 * 0.85**k for k in range(steps)]


def test_fires_on_a_rate_that_is_gone_while_the_loss_could_fall() -> None:
    found = lr_schedule_wrong(record(gone(), highest=2.85, schedule=stepped(240)))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert 30 < found.since_step < 60
    assert "ExponentialLR" in found.summary


def test_asks_whether_the_loss_could_still_fall() -> None:
    outcome = lr_schedule_wrong(record(gone()))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == EXAM


def test_silent_when_the_highest_rate_gains_nothing() -> None:
    assert isinstance(lr_schedule_wrong(record(gone(), highest=3.29)), Clear)


def test_most_of_a_run_at_a_rate_of_exactly_zero_is_wrong_whatever_it_gains() -> None:
    linear = [1e-3 * max(0.0, 1 - k / 60) for k in range(240)]
    found = lr_schedule_wrong(record(linear, highest=3.29))
    assert isinstance(found, Finding)
    assert found.status == "likely"
    at_the_end = [1e-3 * max(0.0, 1 - k / 170) for k in range(240)]
    assert isinstance(lr_schedule_wrong(record(at_the_end, highest=3.29)), Clear)


def test_most_of_a_run_at_zero_is_wrong_where_nothing_can_be_repeated() -> None:
    """A cosine whose place is counted in micro-batches and its length in steps."""
    cosine = [3e-3 * 0.5 * (1 + math.cos(math.pi * min(1.0, k / 57))) for k in range(225)]
    falling = [5.0 - 0.05 * min(k, 57) for k in range(225)]
    groups = [{"class": "AdamW", "groups": [{"lr": 3e-3}]}]

    def of(late_rates: list[float] | None = None) -> Record:
        two = [[3e-3, rate] for rate in late_rates or ()]
        return make_record(
            {"optim.lr": cosine, "loss.token": falling},
            facts={"optimizer.groups": groups},
            layers={"optim.lr_by_group": dict(zip("01", two))} if two else None,
        )

    found = lr_schedule_wrong(of())
    assert isinstance(found, Finding)
    assert (found.status, found.since_step) == ("likely", 57)
    assert "stepped" not in found.summary  # there is no scheduler to speak of
    assert isinstance(lr_schedule_wrong(of([0.0, 0.0])), Finding)
    # One group is switched off, another learns on.
    assert isinstance(lr_schedule_wrong(of([0.0, 1e-3])), Clear)


def test_a_rate_that_died_in_a_run_that_learned_is_possible_where_nothing_can_be_repeated() -> None:
    """Beside "healthy" it would stand untested; where the highest rate was tried and gains nothing, it is cleared."""
    died = [2e-3 * 0.85 ** min(k, 60) for k in range(240)]
    falling = [5.0 - 0.05 * min(k, 60) for k in range(240)]
    refused = ExamResult(EXAM, 200, "refused", {}, "the batches have several shapes")
    groups = [{"class": "Adam", "groups": [{"lr": 2e-3}]}]
    found = lr_schedule_wrong(
        make_record(
            {"optim.lr": died, "loss.token": falling},
            facts={"optimizer.groups": groups},
            exams=[refused],
        )
    )
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_silent_on_a_cosine_to_zero() -> None:
    cosine = [1e-3 * 0.5 * (1 + math.cos(math.pi * k / 239)) for k in range(240)]
    assert isinstance(lr_schedule_wrong(record(cosine)), Clear)


def test_silent_on_a_gentle_second_stage() -> None:
    staged = record([3e-3] * 100 + [1e-6] * 100)
    steps = np.array([0, 100])
    staged._series["optim.objects"] = Series("optim.objects", steps, np.array([1.0, 2.0]))
    assert isinstance(lr_schedule_wrong(staged), Clear)


def test_silent_on_a_warm_up_that_still_rises_and_on_a_constant_rate() -> None:
    rising = record([1e-5 * (k + 1) for k in range(120)], initial=4e-3, schedule=stepped(120))
    assert isinstance(lr_schedule_wrong(rising), Clear)
    assert isinstance(lr_schedule_wrong(record([1e-3] * 100)), Clear)


def test_fires_on_a_warm_up_nobody_steps() -> None:
    found = lr_schedule_wrong(record([1e-5] * 100, initial=1e-3))
    assert isinstance(found, Finding)
    assert "never stepped" in found.summary


def test_silent_on_an_epoch_schedule_whose_epoch_has_not_ended() -> None:
    assert isinstance(lr_schedule_wrong(record([1e-3] * 100, initial=1e-3)), Clear)


def test_fires_when_the_scheduler_drives_an_optimizer_that_does_not_step() -> None:
    other = stepped(100, drives_a_stepped_optimizer=False)
    found = lr_schedule_wrong(record([1e-3] * 100, schedule=other))
    assert isinstance(found, Finding)
    driven = stepped(100, drives_a_stepped_optimizer=True)
    assert isinstance(lr_schedule_wrong(record([1e-3] * 100, schedule=driven)), Clear)


def test_fires_on_a_rate_that_grows_without_end() -> None:
    growing = [1e-3 * 1.05**k for k in range(120)]
    losses = [3.0 - 0.01 * k for k in range(60)] + [2.4 + 0.05 * k for k in range(60)]
    found = lr_schedule_wrong(record(growing, initial=1e-3, losses=losses))
    assert isinstance(found, Finding)
    assert found.status == "likely"
    still_good = [3.0 - 0.01 * k for k in range(120)]
    assert isinstance(lr_schedule_wrong(record(growing, initial=1e-3, losses=still_good)), Clear)


def test_fires_on_a_rate_that_is_zero_throughout() -> None:
    found = lr_schedule_wrong(record([0.0] * 60, initial=1e-3, schedule=stepped(60)))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "0 at every step" in found.summary
    assert isinstance(lr_schedule_wrong(record([0.0, *[1e-5] * 59])), Clear)


@pytest.mark.parametrize("setting", ["total_steps", "T_max", "total_iters"])
@pytest.mark.parametrize(
    ("length", "calls", "sick"),
    [(240, 6, True), (240, 240, False), (6, 6, False), (1000, 6, False)],
)
def test_a_schedule_in_steps_that_is_stepped_once_an_epoch(
    setting: str, length: int, calls: int, sick: bool
) -> None:
    rates = [1.6e-4 + 1e-5 * (step // 40) for step in range(240)]
    found = lr_schedule_wrong(
        record(rates, schedule=stepped(calls, **{setting: length}), initial=1.6e-4)
    )
    assert isinstance(found, Finding if sick else Clear)


def test_a_long_warm_up_is_not_stuck_while_its_scheduler_is_stepped() -> None:
    """The fact about schedules is older than the series: it says one call where there were sixty."""
    rates = [1e-6 * (k + 1) for k in range(60)]
    groups = [{"class": "Adam", "groups": [{"lr": rates[0], "initial_lr": 1e-3}]}]
    stale = make_record(
        {"optim.lr": rates, "loss.token": FLAT[:60], "schedule.calls": list(range(1, 61))},
        facts={"schedule": stepped(1), "optimizer.groups": groups},
    )
    assert isinstance(lr_schedule_wrong(stale), Clear)


def test_a_lambda_that_gives_rates_where_factors_are_meant() -> None:
    meant = 2e-3
    course = [meant**2 * min(1.0, (k + 1) / 20) * (1 - k / 400) for k in range(200)]
    found = lr_schedule_wrong(record(course, initial=meant, schedule=stepped(200)))
    assert isinstance(found, Finding)
    assert "square" in found.summary
    # Warm-up and decay that overlap keep it under the square.
    lower = [meant**2 * min(1.0, (k + 1) / 60) * (1 - k / 200) for k in range(200)]
    found = lr_schedule_wrong(record(lower, initial=meant, schedule=stepped(200)))
    assert isinstance(found, Finding)
    assert "under the square" in found.summary
    right = [rate / meant for rate in course]
    assert isinstance(lr_schedule_wrong(record(right, initial=meant, schedule=stepped(200))), Clear)


@pytest.mark.parametrize("first", [1e-4, 1e-2])
def test_each_group_has_a_rate_of_its_own(first: float) -> None:
    """Backbone and head: the series is the first group's, and so is the rate it was built for."""
    other = {"lr": 1e-2, "initial_lr": 1e-2}
    groups = [{"class": "Adam", "groups": [{"lr": first, "initial_lr": first}, other]}]
    facts = {"schedule": stepped(3), "optimizer.groups": groups}
    series = {"optim.lr": [first] * 120, "loss.token": FLAT[:120]}
    assert isinstance(lr_schedule_wrong(make_record(series, facts=facts)), Clear)


@pytest.mark.parametrize(
    ("given", "factors", "fires"),
    [
        ((3e-3, 5e-2), (3e-3, 3e-3), True),
        ((3e-3, 5e-2), (3e-3, 5e-2), False),
        ((3e-3, 3e-3), (3e-3, 3e-3), False),  # groups that differ in their decay
        ((3e-3, 3e-3), (3e-3, 5e-2), False),
    ],
)
def test_one_rate_for_groups_that_were_given_different_ones(
    given: tuple[float, float], factors: tuple[float, float], fires: bool
) -> None:
    course = [min(1.0, (step + 1) / 10) for step in range(40)]
    groups = [{"lr": rate, "given_lr": rate} for rate in given]
    made = make_record(
        {"optim.lr": [factors[0] * f for f in course], "loss.token": FLAT[:40]},
        layers={
            "optim.lr_by_group": {
                f"group {i}": [rate * f for f in course] for i, rate in enumerate(factors)
            }
        },
        facts={"schedule": [], "optimizer.groups": [{"class": "Adam", "groups": groups}]},
    )
    outcome = lr_schedule_wrong(made)
    assert isinstance(outcome, Finding) == fires
    if isinstance(outcome, Finding):
        assert outcome.status == "likely"
        assert "0.003, 0.05" in outcome.summary
