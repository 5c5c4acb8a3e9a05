from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.init_too_small import init_too_small
from traindoctor.record import ExamResult, make_record


def judge(scale: float, spread: float, *, falls: float = 0.0, frozen: int = 0) -> Outcome:
    loss = [4.0 - falls * step for step in range(40)]
    exams = {"init_scale": {"weight_scale": scale, "logits_std": spread, "frozen": frozen}}
    return init_too_small(make_record({"loss.token": loss}, exams=exams))


def test_fires_when_no_signal_passes() -> None:
    assert isinstance(judge(0.001, 1e-5), Finding)
    assert isinstance(judge(1e-4, 0.08, falls=0.02), Finding)  # the head alone learns a little
    assert isinstance(judge(0.02, 1e-3), Finding)
    assert isinstance(judge(0.04, 5e-11), Finding)  # five layers, each a little too small
    assert isinstance(judge(0.16, 1e-8), Finding)  # eight convolutions without norms


def test_silent_on_usual_scales_on_zero_heads_and_where_the_run_learns() -> None:
    assert isinstance(judge(0.16, 0.1), Clear)
    assert isinstance(judge(0.6, 0.0), Clear)  # an output layer that starts at zero
    assert isinstance(judge(0.04, 5e-11, falls=0.02), Clear)
    assert isinstance(judge(0.02, 1e-3, falls=0.02), Clear)
    assert isinstance(judge(0.001, 1e-5, falls=0.09), Clear)


def test_small_adapters_beside_a_frozen_model_are_meant_so() -> None:
    assert isinstance(judge(0.001, 1e-5, frozen=12), Clear)


def zero_factors(later: ExamResult | None) -> Outcome:
    first = ExamResult("init_scale", 0, "done", {"zero_factors": 4, "weight_scale": 0.6}, "", 0.0)
    return init_too_small(make_record({}, exams=[first] if later is None else [first, later]))


def later(stuck: int) -> ExamResult:
    values = {"stuck": stuck, "names": ["block.down", "block.up"][:stuck], "first": 0}
    return ExamResult("zero_factors", 20, "done", values, "", 0.0)


def test_two_zero_factors_never_move_whatever_the_loss_is() -> None:
    outcome = zero_factors(later(2))
    assert isinstance(outcome, Finding)
    assert (outcome.where, outcome.grade) == ("block.down", "exact")


def test_weights_that_leave_zero_are_no_reason() -> None:
    assert not isinstance(zero_factors(later(0)), Finding)


def test_weights_without_a_first_gradient_are_looked_at_again() -> None:
    early = ExamResult("zero_factors", 2, "refused", {}, "too early", 0.0)
    for outcome in (zero_factors(None), zero_factors(early)):
        assert isinstance(outcome, NotJudged)
        assert outcome.wants == "zero_factors"
