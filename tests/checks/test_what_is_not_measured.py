"""A cause is ruled out by a measurement: what a record does not hold clears nothing, on any check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traindoctor.checks import CHECKS
from traindoctor.checks.base import Clear, Finding
from traindoctor.record import Record, make_record

STEPS = np.arange(200)
FALLING = (2.2 + 2.4 * np.exp(-STEPS / 50) + np.random.default_rng(1).normal(0, 0.03, 200)).tolist()
CALM = (0.6 + np.random.default_rng(2).uniform(0, 0.3, 200)).tolist()
NAN = float("nan")
LOG = {"imported": {"from": "metrics.csv"}, "run.ended": 0}

# Series of a record without facts or exams -> all that these measure.
MEASURED: list[tuple[str, dict[str, list[float]], set[str]]] = [
    ("nothing", {}, set()),
    ("a loss that falls", {"loss.root": FALLING}, set()),
    ("a loss that is flat", {"loss.root": [6.9 + x for x in CALM]}, set()),
    ("a loss that is constant", {"loss.root": [0.0] * 200}, set()),
    ("a loss of a loss function", {"loss.token": FALLING}, set()),
    ("a loss that ends in NaN", {"loss.root": FALLING[:150] + [NAN] * 50}, set()),
    ("a rate", {"optim.lr": [1e-3] * 200}, set()),
    ("a validation loss", {"loss.eval": FALLING}, set()),
    ("both losses", {"loss.root": FALLING, "loss.eval": FALLING}, {"overfitting"}),
    ("gradient norms", {"grad.norm": CALM}, {"gradients-exploding"}),
    (
        "loss and norms that end in NaN",
        {"loss.root": FALLING[:150] + [NAN] * 50, "grad.norm": CALM[:150] + [NAN] * 50},
        set(),
    ),
    (
        "a loss of 0 and NaN norms",
        {"loss.root": [3.0] * 20 + [0.0] * 20, "grad.norm": [1.0] * 20 + [NAN] * 20},
        set(),
    ),
]
# What was measured at every step says more than a log's points and means.
EVERY_STEP = {"gradients-exploding", "nan-from-op", "unstable-softmax", "fp16-overflow"}


def cleared(record: Record) -> set[str]:
    with np.errstate(all="ignore"):
        outcomes = [check(record) for check in CHECKS]
    assert not [o.cause for o in outcomes if isinstance(o, Finding) and o.status != "possible"]
    return {outcome.cause for outcome in outcomes if isinstance(outcome, Clear)}


@pytest.mark.parametrize("facts", [{}, LOG], ids=["bare", "log"])
@pytest.mark.parametrize(
    ("series", "known"), [row[1:] for row in MEASURED], ids=[row[0] for row in MEASURED]
)
def test_only_what_was_measured_is_ruled_out(
    series: dict[str, list[float]], known: set[str], facts: dict[str, Any]
) -> None:
    assert cleared(make_record(series, facts=facts)) == known


def test_loss_and_norms_of_every_step_rule_out_what_makes_them_infinite() -> None:
    series = {"loss.root": FALLING, "grad.norm": CALM}
    assert cleared(make_record(series)) == EVERY_STEP
    assert cleared(make_record(series, facts=LOG)) == {"gradients-exploding"}


def test_a_whole_log_rules_out_what_its_columns_measure() -> None:
    rate = (1e-3 * np.minimum(1, (STEPS + 1) / 20)).tolist()
    series = {"loss.root": FALLING, "grad.norm": CALM, "loss.eval": FALLING, "optim.lr": rate}
    known = {"gradients-exploding", "overfitting", "no-warmup"}
    assert cleared(make_record(series, facts=LOG)) == known
    constant = {**series, "optim.lr": [1e-3] * 200}
    assert cleared(make_record(constant, facts=LOG)) == known - {"no-warmup"}


def test_a_watched_run_rules_out_what_its_facts_say() -> None:
    """The sound counterpart: with the facts that a watched process writes, the same causes are cleared."""
    series = {"loss.root": FALLING, "grad.norm": CALM, "optim.lr": [1e-3] * 200}
    adam = {"class": "AdamW", "groups": [{"betas": [0.9, 0.999], "eps": 1e-8, "lr": 1e-3}]}
    facts = {"env": {"device": "cpu"}, "optimizer.groups": [adam], "run.steps": 200}
    ranks = {"ranks-see-same-data", "ranks-diverged", "gradients-not-synced"}
    known = {"adam-settings-bad", "lr-schedule-wrong", "optimizer-never-steps"}
    assert ranks | known | EVERY_STEP <= cleared(make_record(series, facts=facts))
