"""A cause is ruled out by a measurement: what a record does not hold clears nothing, on any check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traindoctor.checks import CHECKS
from traindoctor.checks.base import Clear, Finding, NotApplicable
from traindoctor.checks.data.ranks_see_same_data import ranks_see_same_data
from traindoctor.checks.distributed.gradients_not_synced import gradients_not_synced
from traindoctor.checks.distributed.ranks_diverged import ranks_diverged
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
    known = {"adam-settings-bad", "lr-schedule-wrong", "optimizer-never-steps"}
    record = make_record(series, facts=facts)
    assert known | EVERY_STEP <= cleared(record)
    for check in (ranks_see_same_data, ranks_diverged, gradients_not_synced):
        assert isinstance(check(record), NotApplicable)


# A series of a sound run by itself -> what it rules out; all others rule out nothing.
ALONE = {
    "batch.rowset": {"batch-not-changing"},
    "forward.calls": {"python-loop-per-example"},
    "grad.leftover_norm": {"missing-zero-grad"},
    "grad.norm": {"gradients-exploding"},
    "graphs.old": {"memory-leak"},
    "mode.training": {"wrong-train-eval-mode"},
    "optim.lr": {"no-warmup"},
}


def test_each_series_alone_rules_out_what_it_measures() -> None:
    rng = np.random.default_rng(3)
    ones, zeros, many = [1.0] * 200, [0.0] * 200, rng.integers(0, 2**32, 200).astype(float).tolist()
    sound = {
        "loss.root": FALLING,
        "loss.read": FALLING,
        "loss.token": FALLING,
        "loss.eval": FALLING,
        "optim.lr": (1e-3 * np.minimum(1, (STEPS + 1) / 20)).tolist(),
        "grad.norm": CALM,
        "grad.norm_clipped": CALM,
        "clip.limit": ones,
        "clip.calls": ones,
        "scaler.scale": [65536.0] * 200,
        "param.norm": ones,
        "update.ratio": [1e-3] * 200,
        "ladder.unigram": [3.2] * 200,
        "ladder.bigram": [2.4] * 200,
        "logits.absmax": ones,
        "memory.rss": [4e8] * 200,
        "time.step": [0.05] * 200,
        "time.data": [0.001] * 200,
        "graphs.old": zeros,
        "mode.training": ones,
        "forward.calls": ones,
        "backward.calls": ones,
        "grad.leftover_norm": zeros,
        "batch.rows": [16.0] * 200,
        "batch.rowset": many,
        "batch.fingerprint": many,
        "target.valid": ones,
    }
    found = {name: cleared(make_record({name: values})) for name, values in sound.items()}
    assert {name: causes for name, causes in found.items() if causes} == ALONE
