from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.init_too_small import init_too_small
from traindoctor.record import make_record


def judge(scale: float, spread: float, *, falls: float = 0.0, frozen: int = 0) -> Outcome:
    loss = [4.0 - falls * step for step in range(40)]
    exams = {"init_scale": {"weight_scale": scale, "logits_std": spread, "frozen": frozen}}
    return init_too_small(make_record({"loss.token": loss}, exams=exams))


def test_fires_when_no_signal_passes() -> None:
    assert isinstance(judge(0.001, 1e-5), Finding)
    assert isinstance(judge(1e-4, 0.08, falls=0.02), Finding)  # the head alone learns a little
    assert isinstance(judge(0.02, 1e-3), Finding)


def test_silent_on_usual_scales_on_zero_heads_and_where_the_run_learns() -> None:
    assert isinstance(judge(0.16, 0.1), Clear)
    assert isinstance(judge(0.6, 0.0), Clear)  # an output layer that starts at zero
    assert isinstance(judge(0.02, 1e-3, falls=0.02), Clear)
    assert isinstance(judge(0.001, 1e-5, falls=0.09), Clear)


def test_small_adapters_beside_a_frozen_model_are_meant_so() -> None:
    assert isinstance(judge(0.001, 1e-5, frozen=12), Clear)
