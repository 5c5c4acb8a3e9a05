"""The governor holds its budget by its own clock, and measures the most overdue first."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.capture.attention import LONGEST, Attention
from traindoctor.capture.budget import CAP_STEPS, PAID_BACK, UP_FRONT_SECONDS, Governor

WISHES = {"norms": 4, "weights": 10, "updates": 50}


def simulate(
    budget: float, *, step: float, prices: dict[str, float], steps: int, always: float = 0.0
) -> tuple[Governor, dict[str, int]]:
    governor = Governor(budget)
    governor.advance = 0.0  # the steady state is the promise; the advance has a test of its own
    for name, every in WISHES.items():
        governor.add(name, every)
    counts = dict.fromkeys(WISHES, 0)
    draw = random.Random(0)
    for number in range(steps):
        spent = always
        for name in governor.choose(number):
            cost = prices[name] * draw.uniform(0.7, 1.4)
            governor.ran(name, number, cost)
            counts[name] += 1
            spent += cost
        governor.pay(spent)
        governor.end_step(step)
    return governor, counts


def test_wishes_are_met_where_they_can_be_paid() -> None:
    governor, counts = simulate(
        0.02, step=0.06, prices={"norms": 4e-4, "weights": 1e-3, "updates": 3e-3}, steps=1000
    )
    assert counts == {"norms": 250, "weights": 100, "updates": 20}
    assert governor.share < 0.02


@given(
    budget=st.sampled_from([0.002, 0.005, 0.01, 0.02]),
    step=st.floats(0.005, 0.2),
    scale=st.floats(0.01, 0.5),
)
@settings(max_examples=40, deadline=None)
def test_the_budget_holds(budget: float, step: float, scale: float) -> None:
    """Prices up to half a step: it samples less, down to nothing, and every part still gets its turn."""
    prices = {"norms": 0.2 * scale * step, "weights": 0.5 * scale * step, "updates": scale * step}
    governor, counts = simulate(budget, step=step, prices=prices, steps=4000)
    first_calls = sum(1.4 * price for price in prices.values()) / (4000 * step)
    assert governor.share <= budget * 1.05 + first_calls
    assert all(counts.values())


def test_short_steps_earn_little() -> None:
    """From 50 ms on a step may cost its share, below no more than one of 10 ms."""
    governor = Governor(0.02)
    assert governor.earnings(0.1) == pytest.approx(2e-3)
    assert governor.earnings(0.05) == pytest.approx(1e-3)
    assert governor.earnings(0.04) == governor.earnings(0.01) == pytest.approx(2e-4)
    assert governor.earnings(0.001) == pytest.approx(2e-5)
    governor, counts = simulate(0.02, step=0.02, prices=dict.fromkeys(WISHES, 1e-3), steps=2000)
    assert governor.share * 0.02 < 2.2e-4
    assert all(counts.values())


def test_a_smaller_budget_samples_less() -> None:
    prices = {"norms": 1e-3, "weights": 2e-3, "updates": 4e-3}
    _, rich = simulate(0.02, step=0.06, prices=prices, steps=800)
    poor_governor, poor = simulate(0.002, step=0.06, prices=prices, steps=800)
    assert poor["norms"] < rich["norms"] / 2
    assert poor_governor.share <= 0.0025


def test_what_always_runs_comes_first() -> None:
    """Where the hooks alone use the budget up, nothing else is measured after its first call."""
    _, counts = simulate(
        0.01, step=0.01, prices=dict.fromkeys(WISHES, 1e-3), steps=500, always=2e-4
    )
    assert set(counts.values()) == {1}


def test_a_long_step_is_no_credit() -> None:
    governor = Governor(0.02)
    for _ in range(40):
        governor.end_step(0.05)
    before = governor.credit
    governor.end_step(60.0)  # an evaluation, a compile
    assert governor.credit - before <= 0.02 * 3 * 0.05 + 1e-12
    for _ in range(1000):
        governor.end_step(0.05)
    assert governor.credit == pytest.approx(CAP_STEPS * 0.02 * 0.05)


def test_the_first_steps_are_lent_once() -> None:
    governor = Governor(0.02)
    governor.add("norms", 1)
    advance = governor.advance
    number = 0
    while "norms" in governor.choose(number):
        governor.ran("norms", number, advance / 20)
        governor.pay(advance / 20)
        governor.end_step(0.01)
        number += 1
    assert 20 <= number <= 22
    assert governor.debt == pytest.approx(advance, rel=0.06)


def test_debt_is_paid_back_and_silences_nothing() -> None:
    """A dear tape that was asked for: measuring goes on at half the rate until it is paid for."""
    governor = Governor(0.02)
    governor.add("norms", 4)
    governor.ran("norms", 0, 1e-4)
    governor.ran("norms", 0, 1e-4)
    governor.end_step(0.05)
    governor.pay(1.5)
    assert governor.debt == pytest.approx(1.5, rel=0.01)
    governor.end_step(0.05)
    assert "norms" in governor.choose(5)
    seconds = 0.0
    while governor.debt and seconds < 1000.0:
        governor.end_step(0.05)
        seconds += 0.05
        governor.ran("norms", 6, 0.02 * 0.05 / 2)  # all of the other half is used
        governor.pay(0.02 * 0.05 / 2)
    assert seconds == pytest.approx(1.5 / 0.01, rel=0.02)
    assert governor.share == pytest.approx(0.02, rel=0.05)


def test_cheap_measurements_do_not_eat_what_a_dear_one_waits_for() -> None:
    """Norms alone would take all that is earned; updates cost twenty steps' worth and still get their turns."""
    _, counts = simulate(
        0.02, step=0.06, prices={"norms": 6e-3, "weights": 6e-3, "updates": 24e-3}, steps=2000
    )
    assert counts["updates"] >= 10
    assert counts["norms"] >= 50


def test_a_first_step_of_no_length_does_not_hide_the_others() -> None:
    governor = Governor(0.02)
    governor.end_step(0.0)
    for _ in range(20):
        governor.end_step(0.05)
    assert governor.run_seconds == pytest.approx(1.0)
    assert governor.step_seconds == pytest.approx(0.05)


def test_what_the_doctor_spends_is_paid_back_by_the_probes() -> None:
    """One budget: with a debt only half of what is earned may be measured with."""

    def measured(owed: float) -> float:
        governor = Governor(0.02)
        governor.advance = 0.0
        governor.add("part", 1)
        governor.owe(owed)
        spent = 0.0
        for step in range(400):
            if "part" in governor.choose(step):
                governor.ran("part", step, 0.004)
                governor.pay(0.004)
                spent += 0.004
            governor.end_step(0.1)
        return spent

    assert measured(0.0) == pytest.approx(0.02 * 40, rel=0.1)
    assert measured(10.0) == pytest.approx(0.01 * 40, rel=0.1)


def test_a_debt_does_not_end_all_measuring_where_listening_is_dear() -> None:
    """Listening takes more than half of what is earned; the rest is saved for what is measured."""
    governor = Governor(0.005)
    governor.advance = 0.0
    governor.add("part", 4)
    governor.owe(5.0)
    calls = spent = 0
    for step in range(400):
        governor.pay(0.0011)
        spent += 0.0011
        if "part" in governor.choose(step):
            governor.ran("part", step, 0.006)
            governor.pay(0.006)
            calls += 1
            spent += 0.006
        governor.end_step(0.4)
    assert calls > 10
    assert spent <= 0.005 * 400 * 0.4


@given(
    step=st.floats(0.01, 0.4),
    pulse=st.floats(1e-3, 4e-3),
    extra=st.floats(5e-3, 2e-2),
    burst=st.floats(0.02, 0.3),
    early=st.floats(0.5, 6.0),
)
@settings(max_examples=60, deadline=None)
def test_after_the_first_minute_all_together_keep_to_what_is_left(
    step: float, pulse: float, extra: float, burst: float, early: float
) -> None:
    """Listening that costs more than its medians say, tapes, tests: what was too much is made up for by silence."""
    governor, attention, draw = Governor(0.02), Attention(), random.Random(0)
    while governor.early:
        governor.end_step(step)
    governor.spent, governor.ahead = early, early
    spent = dearest = 0.0
    steps, silent = int(4 * UP_FRONT_SECONDS / step), 0
    for number in range(attention.first, attention.first + steps):
        silent += 1
        if not attention.heard(number):
            continue
        cost = pulse + (extra if attention.attentive(number) else 0.0)
        attention.end_step(number, cost, governor.earnings(step), early=False)
        cost *= draw.choice([1.0, 1.0, 1.0, 6.0])  # a preempted call
        if draw.random() < 0.02:
            governor.owe(burst)
            spent += burst
        governor.pay(cost)
        governor.end_step(step, silent)
        attention.wait(number, governor.overdrawn)
        spent, silent, dearest = spent + cost, 0, max(dearest, cost + burst)
    allowed = (1 - PAID_BACK) * governor.earnings(step) * steps
    # The longest silence bounds what one look may have to be waited for.
    least = (pulse + extra) * 2.25 + 0.02 * burst
    assert spent <= max(allowed, least * steps / LONGEST) * 1.1 + 2 * dearest


def test_what_the_first_minute_spent_ahead_is_paid_back() -> None:
    governor = Governor(0.02)
    governor.pay(2.0)
    while governor.early:
        governor.end_step(0.1)
    assert governor.ahead == pytest.approx(2.0 - governor.earned)
    assert (governor.left, governor.overdrawn) == (0.0, 0.0)
    before = governor.ahead
    for _ in range(100):
        governor.end_step(0.1)
        governor.pay((1 - PAID_BACK) * 0.02 * 0.1)
    assert before - governor.ahead == pytest.approx(PAID_BACK * 0.02 * 0.1 * 100)
    assert governor.overdrawn == pytest.approx(0.0, abs=1e-6)


def test_nothing_is_measured_while_more_was_spent_than_earned() -> None:
    governor = Governor(0.02)
    governor.add("norms", 1)
    governor.ran("norms", 0, 1e-4)
    governor.ran("norms", 1, 1e-4)
    while governor.early:
        governor.end_step(0.1)
    assert "norms" in governor.choose(700)
    governor.owe(0.15)
    assert governor.overdrawn == pytest.approx(100, rel=0.01)
    assert governor.choose(701) == set()
    for _ in range(101):
        governor.end_step(0.1)
    assert "norms" in governor.choose(802)
