from __future__ import annotations

import math

import numpy as np
import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.gradient.gradients_exploding import gradients_exploding
from traindoctor.checks.optimizer.lr_too_high import EXAM, LONG, lr_too_high
from traindoctor.checks.optimizer.no_warmup import no_warmup
from traindoctor.record import ExamResult, Record, Series, make_record

STUCK = [4.7, 4.0, 3.5, *[3.2] * 60]
LADDER = [3.2] * 63


def trial(control: float = 3.33, permuted=(3.336, 3.334), fidelity: float = 0.0, **variants: float):
    """An experiment's numbers as the exam writes them; NaN stands for a run that blew up."""

    def one(loss: float) -> dict:
        return {"loss": loss, "blown": math.isnan(loss), "losses": []}

    return {
        "start": 0,
        "steps": 40,
        "before": 4.74,
        "control": one(control),
        "permuted": [one(p) for p in permuted],
        "variants": {name.replace("_", "/"): one(loss) for name, loss in variants.items()},
        "fidelity": fidelity,
    }


def record(values: dict | None, losses=STUCK, rates=None) -> Record:
    exams = {} if values is None else {EXAM: values}
    rates = rates or [0.02] * len(losses)
    series = {"loss.token": losses, "ladder.unigram": LADDER[: len(losses)], "optim.lr": rates}
    return make_record(series, exams=exams)


def test_fires_when_a_third_and_a_tenth_of_the_rate_both_win() -> None:
    found = lr_too_high(record(trial(lr_3=2.93, lr_10=3.10, warmup=3.31)))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert found.confidence > 0.9
    assert "0.02" in found.summary


def test_a_loss_that_moves_its_own_target_is_no_measure_of_a_rate() -> None:
    values = trial(lr_3=2.93, lr_10=3.10, warmup=3.31)
    judged = lr_too_high(record(values | {"held_fixed": 0.3}))
    assert isinstance(judged, NotJudged)
    assert "held fixed" in judged.reason
    assert isinstance(lr_too_high(record(values | {"held_fixed": 1e-9})), Finding)


@pytest.mark.parametrize(
    ("begins", "judges"),
    [([0, 30], False), ([0, 44], False), ([0, 60], True), ([0, 1], True), ([0], True)],
)
def test_an_experiment_over_the_border_of_two_stages_says_nothing(
    begins: list[int], judges: bool
) -> None:
    """Forty steps from the start, judged by six batches behind them."""
    made = record(trial(lr_3=2.93, lr_10=3.10, warmup=3.31) | {"until": 45})
    numbers = np.arange(1.0, 1 + len(begins))
    made._series["optim.objects"] = Series("optim.objects", np.array(begins), numbers)
    for rate in (lr_too_high(made), no_warmup(made)):
        assert isinstance(rate, NotJudged) is not judges


def test_fires_when_the_run_blows_up_and_lower_rates_learn() -> None:
    values = trial(control=math.nan, permuted=(math.nan, math.nan), lr_3=2.7, lr_10=2.8)
    values["variants"]["warmup"] = {"loss": math.nan, "blown": True, "losses": []}
    assert isinstance(lr_too_high(record(values)), Finding)


def test_fires_when_even_a_third_blows_up_and_a_tenth_learns() -> None:
    values = trial(control=math.nan, permuted=(math.nan, math.nan), lr_3=math.nan, lr_10=2.8)
    found = lr_too_high(record(values))
    assert isinstance(found, Finding)
    assert "a tenth of it reaches a loss of 2.800 where this run breaks" in found.summary


def test_large_gradients_whose_clipping_beats_every_lower_rate_are_the_cause_instead() -> None:
    def judge(clipped: float, norm: float) -> tuple[object, object]:
        broken = (math.nan, math.nan)
        values = trial(math.nan, broken, lr_3=math.nan, lr_10=3.9, lr_100=3.5, clipped=clipped)
        made = make_record(
            {"loss.token": STUCK, "optim.lr": [0.02] * 63, "grad.norm": [norm, 3e9]},
            exams={EXAM: values},
        )
        return lr_too_high(made), gradients_exploding(made)

    rate, gradients = judge(clipped=2.8, norm=31.0)
    assert isinstance(rate, Clear)
    assert isinstance(gradients, Finding)
    assert gradients.status == "confirmed"
    # Shortened steps that do no better than a lower rate's, and gradients of a usual size: the rate.
    for clipped, norm in ((3.4, 31.0), (math.nan, 31.0), (2.8, 3.0)):
        rate, gradients = judge(clipped, norm)
        assert isinstance(rate, Finding)
        assert isinstance(gradients, NotJudged)


def test_silent_when_every_rate_blows_up() -> None:
    values = trial(control=math.nan, permuted=(math.nan,), lr_3=math.nan, lr_10=math.nan)
    assert not isinstance(lr_too_high(record(values)), Finding)


def test_silent_when_only_one_of_them_wins() -> None:
    assert isinstance(lr_too_high(record(trial(lr_3=3.1, lr_10=3.6))), Clear)


def test_silent_on_what_annealing_gives() -> None:
    assert isinstance(lr_too_high(record(trial(lr_3=3.30, lr_10=3.31))), Clear)


def test_silent_within_five_times_the_noise_of_the_order_of_batches() -> None:
    noisy = trial(permuted=(3.45, 3.25), lr_3=2.93, lr_10=2.95)
    assert isinstance(lr_too_high(record(noisy)), Clear)


def repeated(values: dict, name: str, *losses: float) -> dict:
    values["variants"][name]["permuted"] = [
        {"loss": loss, "blown": False, "losses": []} for loss in losses
    ]
    return values


def test_a_noisy_run_is_judged_by_repeats_of_control_and_variant() -> None:
    apart = trial(control=3.27, permuted=(3.18, 3.16), lr_3=3.15, lr_10=2.97)
    assert isinstance(lr_too_high(record(repeated(apart, "lr/10", 2.95, 2.99))), Finding)
    paired = trial(control=3.20, permuted=(3.23, 3.12), lr_3=3.16, lr_10=3.03)
    assert isinstance(lr_too_high(record(repeated(paired, "lr/10", 3.02, 2.91))), Finding)
    mixed = trial(control=3.27, permuted=(3.18, 3.16), lr_3=3.15, lr_10=2.97)
    assert isinstance(lr_too_high(record(repeated(mixed, "lr/10", 3.17, 3.02))), Clear)


def test_a_hundredth_is_asked_where_a_tenth_is_still_too_high() -> None:
    stuck = trial(control=3.21, permuted=(3.23, 3.20), lr_3=3.22, lr_10=3.19, lr_100=2.70)
    found = lr_too_high(record(stuck))
    assert isinstance(found, Finding)
    assert "a hundredth of it reaches a loss of 2.700" in found.summary


def test_a_replay_that_drifts_away_after_the_first_steps_is_a_run_with_long_steps() -> None:
    values = trial(fidelity=2.0, lr_3=2.93, lr_10=3.10, warmup=3.31)
    assert isinstance(lr_too_high(record(values)), NotJudged)
    assert isinstance(lr_too_high(record(values | {"fidelity_at_first": 1e-6})), Finding)


def test_a_smaller_gain_is_likely_beside_orders_in_which_the_run_breaks() -> None:
    values = trial(control=3.21, permuted=(3.23, math.nan), lr_3=3.19, lr_10=3.17, lr_100=3.13)
    found = lr_too_high(record(values))
    assert isinstance(found, Finding)
    assert found.status == "likely"
    nothing_learned = trial(control=5.1, permuted=(5.2, math.nan), lr_3=5.0, lr_10=4.9, lr_100=4.76)
    assert isinstance(lr_too_high(record(nothing_learned)), Clear)
    steady = trial(control=3.21, permuted=(3.23, 3.22), lr_3=3.19, lr_10=3.17, lr_100=3.13)
    assert isinstance(lr_too_high(record(steady)), Clear)


def test_a_run_between_the_rungs_is_asked_and_one_on_the_bigram_rung_is_not() -> None:
    def ending(loss: float) -> Record:
        series = {"loss.token": [4.7, 4.0, 3.5, *[loss] * 60], "optim.lr": [0.02] * 63}
        return make_record(series | {"ladder.unigram": [3.3] * 63, "ladder.bigram": [2.6] * 63})

    assert isinstance(lr_too_high(ending(2.95)), NotJudged)
    assert isinstance(lr_too_high(ending(2.65)), Clear)


def test_asks_for_the_experiment_when_the_loss_sticks() -> None:
    outcome = lr_too_high(record(None))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == EXAM


def test_does_not_ask_while_the_run_learns() -> None:
    falling = [4.7 * 0.98**k for k in range(63)]
    assert isinstance(lr_too_high(record(None, falling)), Clear)


def test_asks_when_the_loss_jumped_at_first_though_it_came_back() -> None:
    jumped = [3.4, 4.1, 8.6, 11.5, 8.3, *[4.5 - 0.03 * k for k in range(58)]]
    outcome = lr_too_high(record(None, jumped))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == EXAM


def test_not_judged_when_the_replay_is_not_the_run() -> None:
    assert isinstance(lr_too_high(record(trial(fidelity=0.5, lr_3=2.0, lr_10=2.0))), NotJudged)


def test_a_refused_experiment_clears_no_rate_however_the_loss_fell() -> None:
    refused = [ExamResult(EXAM, 0, "refused", {}, "no tape")]
    broken = make_record({"loss.root": [4.0] * 20 + [math.nan] * 20, "optim.lr": [1.0] * 40})
    calm = make_record({"loss.root": [4 - 0.03 * k for k in range(40)], "optim.lr": [1.0] * 40})
    flat = make_record({"loss.root": [4.0, 3.9] * 20, "optim.lr": [1.0] * 40})
    for made in (broken, calm, flat):
        made.exam_results = tuple(refused)
    for outcome in (lr_too_high(broken), lr_too_high(flat), no_warmup(flat), lr_too_high(calm)):
        assert isinstance(outcome, NotJudged)
        assert (outcome.reason, outcome.wants) == ("no tape", EXAM)


def with_more_steps(longer: dict | None, *, steps: int = 140) -> Record:
    """The run stops on the level of frequencies; its first 40 steps are no better at any rate."""
    losses = [4.7, 4.0, 3.5, *[3.2] * (steps - 3)]
    exams = {EXAM: trial(lr_3=3.33, lr_10=3.5)} | ({} if longer is None else {LONG: longer})
    series = {"loss.token": losses, "ladder.unigram": [3.2] * steps, "optim.lr": [0.02] * steps}
    return make_record(series, exams=exams)


def test_a_run_that_stops_is_asked_about_with_more_steps() -> None:
    asked = lr_too_high(with_more_steps(None))
    assert isinstance(asked, NotJudged)
    assert asked.wants == LONG
    assert isinstance(lr_too_high(with_more_steps(None, steps=80)), Clear)
    learns = trial(control=3.21, permuted=(3.213, 3.208), lr_10=2.9) | {"steps": 120}
    found = lr_too_high(with_more_steps(learns))
    assert isinstance(found, Finding)
    assert "120" in found.evidence[0].measure
    assert isinstance(lr_too_high(with_more_steps(trial(lr_10=3.32))), Clear)
    by_heart = trial(
        control=3.9, permuted=(3.91, 3.89), lr_10=2.9
    )  # batches without a rule behind them
    assert isinstance(lr_too_high(with_more_steps(by_heart)), Clear)
    warm = with_more_steps(trial(control=3.21, permuted=(3.213, 3.208), lr_10=2.9, warmup=2.88))
    assert isinstance(lr_too_high(warm), Clear)


def test_a_run_that_has_solved_its_task_is_left_alone() -> None:
    solved = [4.7, 4.0, 3.5, *[0.1] * 60]
    for check in (lr_too_high, no_warmup):
        assert isinstance(check(record(trial(lr_3=2.9, lr_10=3.0, warmup=2.85), solved)), Clear)


def test_warm_up_that_cures_is_named_instead() -> None:
    made = record(trial(lr_3=2.9, lr_10=3.0, warmup=2.85))
    assert isinstance(lr_too_high(made), Clear)
    found = no_warmup(made)
    assert isinstance(found, Finding)
    assert found.cause == "no-warmup"


def test_no_warmup_is_silent_when_warm_up_helps_little_or_exists() -> None:
    little = record(trial(lr_3=2.9, lr_10=3.0, warmup=3.2))
    assert isinstance(no_warmup(little), Clear)
    rising = record(
        trial(lr_3=2.9, lr_10=3.0, warmup=2.85), rates=[1e-3 * (k + 1) for k in range(63)]
    )
    assert isinstance(no_warmup(rising), Clear)


def test_no_warmup_is_silent_when_a_lower_rate_is_no_better() -> None:
    assert isinstance(no_warmup(record(trial(lr_3=3.5, lr_10=3.9, warmup=3.2))), Clear)


def test_a_run_that_came_as_far_by_itself_was_slow_for_a_while() -> None:
    """A loss of the script's own, so that no rung tells how far it should have come."""
    slow = [4.6, 4.0, 3.9, *[3.4 - 0.008 * k for k in range(80)]]  # to 2.77
    stuck = [4.6, 4.0, 3.9, *[3.1] * 80]

    def made(values: dict, losses: list[float]) -> Record:
        series = {"loss.root": losses, "optim.lr": [0.02] * len(losses)}
        return make_record(series, exams={EXAM: values})

    lower = trial(control=3.03, permuted=(3.03, 3.02), lr_3=2.83, lr_10=2.85, warmup=3.02)
    assert isinstance(lr_too_high(made(lower, slow)), Clear)
    assert isinstance(lr_too_high(made(lower, stuck)), Finding)
    gentle = trial(control=3.03, permuted=(3.03, 3.02), lr_3=2.85, lr_10=2.9, warmup=2.83)
    assert isinstance(no_warmup(made(gentle, slow)), Clear)
    assert isinstance(no_warmup(made(gentle, stuck)), Finding)


def test_a_longer_warm_up_is_no_excuse_for_a_run_that_warms_up() -> None:
    values = trial(control=math.nan, permuted=(math.nan, math.nan), lr_3=2.9, lr_10=2.8, warmup=2.9)
    assert isinstance(lr_too_high(record(values)), Clear)
    rates = [0.02 * min(1, (k + 1) / 15) for k in range(63)]
    assert isinstance(lr_too_high(record(values, rates=rates)), Finding)
    assert isinstance(no_warmup(record(values, rates=rates)), Clear)


def warming(values: dict | None, *, steps: int = 120) -> Record:
    """A run that has stopped on the level of frequencies, its rate on the way up for 60 steps."""
    losses = [4.7, 4.0, 3.5, *[3.2] * (steps - 3)]
    rates = [0.1 * min(1.0, (step + 1) / 60) for step in range(steps)]
    series = {"loss.token": losses, "ladder.unigram": [3.2] * steps, "optim.lr": rates}
    return make_record(series, exams={} if values is None else {LONG: values})


def test_a_run_that_is_stuck_behind_a_long_warm_up_is_asked_for_many_steps_at_once() -> None:
    asked = lr_too_high(warming(None))
    assert isinstance(asked, NotJudged)
    assert asked.wants == LONG
    found = lr_too_high(warming(trial(3.245, (3.24, 3.25), lr_10=2.74)))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "0.1" in found.summary
    assert isinstance(
        lr_too_high(warming(trial(3.245, (3.24, 3.25), lr_10=3.2, lr_100=2.7))), Finding
    )


def test_many_steps_that_do_not_help_leave_the_question_to_the_first_ones() -> None:
    for values in (
        trial(3.245, (3.24, 3.25), lr_10=3.2),
        trial(3.25, (3.1, 3.4), lr_10=2.9),  # within five times the noise
        trial(3.245, (3.24, 3.25), fidelity=0.5, lr_10=2.7),  # another run
    ):
        outcome = lr_too_high(warming(values))
        assert isinstance(outcome, NotJudged)
        assert outcome.wants == EXAM


def test_a_loss_of_both_signs_is_not_judged_by_its_level() -> None:
    wins = trial(lr_3=2.93, lr_10=3.10, warmup=3.31)
    rewards = [2.0, -1.5, 0.3, -0.2] * 20
    made = make_record({"loss.root": rewards, "optim.lr": [0.02] * 80}, exams={EXAM: wins})
    assert isinstance(lr_too_high(made), NotJudged)
    assert isinstance(no_warmup(made), NotJudged)
    # Above 0 at every step, or rounded to it: a measure.
    for losses in (STUCK, [loss if loss > 3.3 else -1e-9 for loss in STUCK]):
        made = make_record({"loss.root": losses, "optim.lr": [0.02] * 63}, exams={EXAM: wins})
        assert not isinstance(lr_too_high(made), NotJudged)
