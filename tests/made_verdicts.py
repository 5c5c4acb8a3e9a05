"""Diagnoses that the report tests show: every part of a verdict occurs in one of them."""

from __future__ import annotations

from traindoctor.checks import laws
from traindoctor.checks.base import Clear, Evidence, Finding, NotApplicable, NotJudged
from traindoctor.diagnosis import Diagnosis, Run, Symptom, judge

LEAK = Finding(
    cause="causal-mask-leak",
    code="MOD001",
    grade="exact",
    status="confirmed",
    confidence=1.0,
    summary="Predictions see their own targets: changing token t+1 moves the prediction at t",
    evidence=(
        Evidence("largest change of a logit before the changed token", 0.651, 0.0, 1e-6, 3),
        Evidence("positions that see their target", "63 of 63", "0 of 63", None, 3),
    ),
    remedy="Mask with torch.triu(ones(T, T), diagonal=1): here the diagonal is 2.",
    where="blocks.0.attention",
    since_step=0,
    line="/home/somebody/project/train.py:54",
    law=laws.UNSEEN,
)
OVERFIT = Finding(
    cause="overfitting",
    code="OVF001",
    grade="statistic",
    status="likely",
    confidence=0.7,
    summary="Held-out loss rises while the training loss falls",
    evidence=(Evidence("held-out loss over its minimum", 1.6, 1.0, 0.05, 120),),
    remedy="Stop at step 80.",
    since_step=80,
)
LEAKING_MEMORY = Finding(
    cause="memory-leak",
    code="SPD004",
    grade="exact",
    status="confirmed",
    confidence=1.0,
    summary="Autograd graphs of old steps stay alive",
    evidence=(Evidence("graphs older than 8 forward passes", 24, 0, None, 60),),
    remedy="Append loss.item(), not loss.",
    since_step=13,
)
CLEARED = [
    *(Clear(name, "tape_gradient") for name in ("backward-incorrect", "loss-gradient-mismatch")),
    *(Clear(f"cause-{number}", "the record") for number in range(9)),
]
OPEN = [
    NotJudged("overfitting", "no validation loss was seen", why="not-measured"),
    NotJudged("lr-too-low", "needs 20 steps, saw 1", why="too-few-steps"),
    NotApplicable("ranks-diverged", "one process trains"),
    NotApplicable("gradients-not-synced", "one process trains"),
    NotApplicable("fp16-overflow", "no half precision is used"),
]


def sick() -> Diagnosis:
    seen = Symptom("loss-too-good", "the loss is 0.9 nats lower than that of a 5-gram model")
    return judge(
        [OVERFIT, LEAKING_MEMORY, LEAK, *CLEARED, *OPEN],
        Run(steps=160, symptoms=(seen,)),
        overhead_percent=1.234,
        overhead_seconds=0.61,
    )


def healthy() -> Diagnosis:
    return judge([*CLEARED, *OPEN], Run(steps=40), overhead_percent=None)


def inconclusive() -> Diagnosis:
    seen = Symptom("loss-not-finite", "the loss is NaN or infinite from step 3 on", 3, True)
    run = Run(steps=20, symptoms=(seen,))
    return judge([*CLEARED, *OPEN], run, notes=["the test for x failed: ValueError: y"])
