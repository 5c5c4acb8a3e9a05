from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.optimizer.lr_too_low import EXAM, lr_too_low
from traindoctor.record import ExamResult, Record, make_record

CRAWLING = [4.65 - 0.0005 * k for k in range(200)]


def trial(gain_own: float, gain_10: float, gain_100: float, kl: float | None = 3e-8) -> dict:
    def one(gain: float) -> dict:
        return {"loss": 4.6 - gain, "blown": False, "losses": []}

    return {
        "start": 150,
        "steps": 20,
        "before": 4.6,
        "control": one(gain_own),
        "permuted": [one(gain_own + 1e-4), one(gain_own - 1e-4)],
        "variants": {"lr*10": one(gain_10), "lr*100": one(gain_100)},
        "fidelity": 0.0,
        "kl_per_update": kl,
    }


def record(values=None, *, rates=None, ratio=2e-5, facts=None, losses=CRAWLING) -> Record:
    series = {
        "loss.token": losses,
        "ladder.unigram": [3.2] * len(losses),
        "optim.lr": rates or [2e-6] * len(losses),
        "update.ratio": [ratio] * 20,
    }
    return make_record(series, exams={} if values is None else {EXAM: values}, facts=facts or {})


def test_confirmed_by_a_tenfold_gain_and_updates_that_change_nothing() -> None:
    found = lr_too_low(record(trial(0.01, 0.09, 0.62)))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"


def test_likely_by_the_gain_alone() -> None:
    found = lr_too_low(record(trial(0.01, 0.09, 0.62, kl=7e-6)))
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_silent_on_a_sound_but_slow_run() -> None:
    assert isinstance(lr_too_low(record(trial(0.075, 0.34, 0.43, kl=1e-5))), Clear)
    on_a_plateau = trial(0.03, 0.21, 0.41, kl=1.1e-5)
    assert isinstance(lr_too_low(record(on_a_plateau)), Clear)


def test_confirmed_where_not_even_frequencies_are_learned_and_longer_steps_learn_them() -> None:
    learns_them = trial(0.08, 0.54, 1.29, kl=1.4e-6)
    found = lr_too_low(record(learns_them))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    # The same gain in a run that knows the frequencies, or whose steps are long, is that of a slow start.
    assert isinstance(lr_too_low(record(learns_them, losses=[3.1] * 200)), Clear)
    assert isinstance(lr_too_low(record(learns_them, ratio=2e-3)), Clear)


def test_silent_while_the_rate_rises() -> None:
    rising = [1e-6 * (k + 1) for k in range(200)]
    assert isinstance(lr_too_low(record(trial(0.01, 0.8, 0.8), rates=rising)), Clear)


def test_silent_at_the_end_of_a_decay() -> None:
    falling = [1e-3 * (1 - k / 200) for k in range(200)]
    assert isinstance(lr_too_low(record(trial(0.001, 0.09, 0.1), rates=falling)), Clear)


def test_a_schedule_that_never_was_high_is_tried_where_it_was_highest() -> None:
    """A loss above the frequencies of the targets after all of it: the peak itself was too low."""
    falling = [5e-6 * (1 - k / 200) for k in range(200)]
    early = {**trial(0.08, 0.54, 1.29, kl=1.4e-6), "start": 0}
    asked = lr_too_low(record(rates=falling))
    assert isinstance(asked, NotJudged)
    assert asked.wants == EXAM
    found = lr_too_low(record(early, rates=falling))
    assert isinstance(found, Finding)
    assert "5e-06" in found.summary
    assert isinstance(lr_too_low(record(rates=falling, losses=[3.1] * 200)), Clear)


def test_not_judged_when_trained_weights_are_tuned_gently() -> None:
    tuned = {"optimizer.coverage": {"trained_before": True}}
    assert isinstance(lr_too_low(record(trial(0.01, 0.1, 0.6), facts=tuned)), NotJudged)
    outcome = lr_too_low(record(facts=tuned))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants is None


def test_asks_only_where_steps_are_short() -> None:
    outcome = lr_too_low(record())
    assert isinstance(outcome, NotJudged)
    assert outcome.wants == EXAM
    assert isinstance(lr_too_low(record(ratio=2e-3)), Clear)


def test_without_a_replay_weights_that_went_nowhere_prove_it_at_the_level_of_a_guess() -> None:
    def judge(ratio: float, level: float) -> object:
        series = {
            "loss.token": [level] * 60,
            "optim.lr": [1e-7] * 60,
            "update.ratio": [ratio] * 20,
        }
        refused = ExamResult(EXAM, 40, "refused", {}, "batches of different shapes")
        return lr_too_low(
            make_record(series, exams=[refused], facts={"loss.site": {"classes": 32}})
        )

    found = judge(1e-6, 3.47)
    assert isinstance(found, Finding)
    assert found.status == "likely"
    assert isinstance(judge(1e-6, 2.1), NotJudged)  # fine-tuning
    assert isinstance(judge(1e-3, 3.47), NotJudged)  # it moved: something else is wrong


def test_the_first_steps_are_too_few_to_call_a_run_slow() -> None:
    """A sound run at 1e-4 is far above the frequencies after 24 steps."""
    learns_them = trial(0.08, 0.54, 1.29, kl=1.4e-6)
    early = lr_too_low(record(learns_them, losses=CRAWLING[:24]))
    assert isinstance(early, NotJudged)
    assert "too few" in early.reason


def test_silent_where_steps_are_long_whatever_is_gained() -> None:
    assert isinstance(lr_too_low(record(trial(0.01, 0.3, 0.9, kl=1e-3), ratio=6e-3)), Clear)
