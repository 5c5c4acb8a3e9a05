from __future__ import annotations

import numpy as np

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.init_too_large import init_too_large
from traindoctor.record import Series, make_record

HEALTHY = {"loss_ratio": 1.03, "logits_std": 0.6, "score_std": 1.0, "weight_scale": 0.6}


def judge(**values: float | None) -> Outcome:
    return init_too_large(make_record(exams={"init_scale": HEALTHY | values}))


def test_fires_when_loss_scores_and_weights_are_out() -> None:
    found = judge(loss_ratio=4.0, logits_std=8.0, score_std=60.0, weight_scale=8.1)
    assert isinstance(found, Finding)
    assert len(found.evidence) == 4


def test_silent_on_one_number_alone_and_on_pretrained_models() -> None:
    assert isinstance(judge(), Clear)
    assert isinstance(judge(loss_ratio=1.9), Clear)
    assert isinstance(judge(loss_ratio=0.6, logits_std=6.0, score_std=12.0), Clear)


def test_without_classes_two_others_decide() -> None:
    assert isinstance(
        judge(loss_ratio=None, logits_std=None, score_std=60.0, weight_scale=8.0), Finding
    )
    assert isinstance(judge(loss_ratio=None, logits_std=None), Clear)


def run_of(losses: list[float]) -> Outcome:
    exams = {"init_scale": HEALTHY | {"loss_ratio": 6.7, "logits_std": 8.3, "ln_classes": 4.1}}
    return init_too_large(make_record({"loss.token": losses}, exams=exams))


def test_silent_when_the_run_is_soon_rid_of_it() -> None:
    assert isinstance(run_of([27.0, 12.0, 5.0] + [2.0] * 20 + [0.3] * 40), Clear)
    # rid of it late, or rid of it and no better than guessing
    assert isinstance(run_of([27.0] * 40 + [0.3] * 20), Finding)
    assert isinstance(run_of([27.0, 12.0, 5.0] + [3.9] * 60), Finding)


def test_steps_that_were_not_heard_are_not_held_against_the_run() -> None:
    def heard_until(step: int) -> Outcome:
        steps = [*range(0, step, 2), *range(70, 100)]
        losses = [27.0 - i / 4 for i in range(len(steps) - 30)] + [0.4] * 30
        values = HEALTHY | {"loss_ratio": 6.7, "logits_std": 8.3, "ln_classes": 4.09}
        record = make_record(exams={"init_scale": values})
        record._series["loss.token"] = Series("loss.token", np.array(steps), np.array(losses))
        return init_too_large(record)

    # a busy machine: somewhere between step 31 and step 70
    assert isinstance(heard_until(32), Clear)
    assert isinstance(heard_until(68), Finding)


def test_wide_scores_alone_may_take_longer_if_the_run_then_learns_nearly_all() -> None:
    def ending(loss: float, score_std: float = 1.0) -> Outcome:
        losses = [27.0 - i for i in range(24)] + [loss] * 36
        values = HEALTHY | {"loss_ratio": 6.7, "logits_std": 8.3, "score_std": score_std}
        exams = {"init_scale": values | {"ln_classes": 4.09}}
        return init_too_large(make_record({"loss.token": losses}, exams=exams))

    assert isinstance(ending(0.4), Clear)
    assert isinstance(ending(1.8), Finding)
    # saturated attention passes no gradient to what lies before it
    assert isinstance(ending(0.4, score_std=20.0), Finding)


def test_silent_where_a_factor_makes_the_scores_wide_and_no_weight_is_large() -> None:
    wide = {"loss_ratio": 5.5, "logits_std": 5.4, "score_std": 0.2}
    assert isinstance(judge(**wide, weight_scale=0.56, largest_scale=0.81), Clear)
    assert isinstance(judge(**wide, weight_scale=0.56, largest_scale=5.7), Finding)  # a tied table
