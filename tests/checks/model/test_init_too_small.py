from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, Outcome
from traindoctor.checks.model.init_too_small import init_too_small
from traindoctor.record import make_record


def judge(scale: float, spread: float, *, falls: bool = False) -> Outcome:
    loss = [4.0 - 0.05 * step * falls for step in range(40)]
    exams = {"init_scale": {"weight_scale": scale, "logits_std": spread}}
    return init_too_small(make_record({"loss.token": loss}, exams=exams))


def test_fires_when_no_signal_passes_and_the_loss_stands() -> None:
    assert isinstance(judge(0.001, 1e-5), Finding)


def test_silent_on_usual_scales_on_zero_heads_and_where_the_loss_falls() -> None:
    assert isinstance(judge(0.16, 0.1), Clear)
    assert isinstance(judge(0.6, 0.0), Clear)  # an output layer that starts at zero
    assert isinstance(judge(0.001, 1e-5, falls=True), Clear)
