"""Checks of the numerics family on records written by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.numerics.fp16_overflow import fp16_overflow
from traindoctor.checks.numerics.fp16_underflow import fp16_underflow
from traindoctor.checks.numerics.low_precision_updates_lost import low_precision_updates_lost
from traindoctor.checks.numerics.nan_from_op import nan_from_op
from traindoctor.record import Record, Series, make_record

NAN = float("nan")
BROKEN = [4.0, 3.9, 3.8, 3.7, NAN]


def broke(op: str = "div", dtype: str = "float32", **more: Any) -> Record:
    values = {
        "op": op,
        "line": "train.py:40",
        "package_line": None,
        "module": "encoder",
        "phase": "forward",
        "dtype": dtype,
        "inputs": [{"shape": [8], "min": 0.0, "max": 2.4, "smallest": 0.0, "infinite": 0}],
        "count": 32,
        "step": 4,
        "chain": ["std"],
        "largest_weight": 1.0,
        "largest_weight_at_start": 1.0,
        **more,
    }
    return make_record({"loss.root": BROKEN}, exams={"first_nonfinite": values})


def test_the_op_is_the_cause_with_calm_weights() -> None:
    found = nan_from_op(broke())
    assert isinstance(found, Finding)
    assert (found.line, found.where, found.since_step) == ("train.py:40", "encoder", 4)


def test_what_had_blown_up_before_is_no_op() -> None:
    assert isinstance(nan_from_op(broke(largest_weight=3e4)), Clear)
    values = {**broke().exam("first_nonfinite").values}
    runaway = make_record(
        {"loss.root": [4.0, 5e3, 1.6e8, 1e14, NAN]}, exams={"first_nonfinite": values}
    )
    assert isinstance(nan_from_op(runaway), Clear)
    assert isinstance(nan_from_op(broke("exp")), Clear)
    swollen = [{"smallest": 1.0, "min": -1e23, "max": 1e23}]
    assert isinstance(nan_from_op(broke("matmul", inputs=swollen)), Clear)
    finite = {"loss.root": [4.0, 3.0], "grad.norm": [1.0, 1.0]}
    assert isinstance(nan_from_op(make_record(finite)), Clear)
    assert isinstance(nan_from_op(make_record({"loss.root": [4.0, 3.0]})), NotJudged)


def test_a_broken_run_asks() -> None:
    asked = nan_from_op(make_record({"loss.root": BROKEN}))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "first_nonfinite"
    lost = make_record(
        {"loss.root": BROKEN}, exams={"first_nonfinite": {"op": None, "reason": "no"}}
    )
    assert isinstance(nan_from_op(lost), NotJudged)


def test_half_precision_overflows() -> None:
    found = fp16_overflow(broke("matmul", "float16"))
    assert isinstance(found, Finding)
    assert isinstance(nan_from_op(broke("matmul", "float16")), Clear)
    assert isinstance(fp16_overflow(broke()), Clear)


def test_a_scaler_that_never_finds_its_level() -> None:
    start = [1.0] * 15 + [0.0] * 5
    found = fp16_overflow(make_record({"scaler.skipped": start + [1.0, 0.0] * 30}))
    assert isinstance(found, Finding)
    assert isinstance(fp16_overflow(make_record({"scaler.skipped": start + [0.0] * 60})), Clear)
    place = {"op": "matmul", "line": "train.py:9", "module": "head"}
    ladder = {"precision_ladder": {"rungs": {"float16": {"overflow": place}}}}
    placed = fp16_overflow(make_record({"scaler.skipped": start + [1.0, 0.0] * 30}, exams=ladder))
    assert isinstance(placed, Finding)
    assert (placed.where, placed.line) == ("head", "train.py:9")


def half(
    dtypes: list[str],
    lost: float = 0.0,
    weights: str = "float32",
    eps: float = 1e-8,
    errors: tuple[float, float] = (0.0, 0.0),
) -> Record:
    """`errors` of the gradient, as it is and with a larger loss."""
    values = {
        "dtypes": dtypes,
        "gradient_lost": lost,
        "error": errors[0],
        "error_scaled": errors[1],
        "weights": weights,
        "worst_layer": "a.weight",
    }
    groups = [{"class": "Adam", "groups": [{"eps": eps}]}]
    return make_record(facts={"optimizer.groups": groups}, exams={"half_gradients": values})


def test_gradients_that_float16_swallows() -> None:
    found = fp16_underflow(half(["float16", "float32"], lost=0.8))
    assert isinstance(found, Finding)
    assert found.where == "a.weight"
    assert isinstance(fp16_underflow(half(["float16"], weights="float16")), Finding)


def test_gradients_that_lose_their_bits_before_they_are_zero() -> None:
    found = fp16_underflow(half(["float16", "float32"], lost=0.07, errors=(0.3, 3e-4)))
    assert isinstance(found, Finding)
    assert "30%" in found.summary
    # An error that a larger loss does not cure is no matter of small numbers.
    assert isinstance(fp16_underflow(half(["float16"], lost=0.07, errors=(0.3, 0.25))), Clear)
    # ... nor is one that is no number, with either loss: the range was left at its other end.
    for scaled in (math.inf, 1e-3):
        assert isinstance(fp16_underflow(half(["float16"], errors=(math.inf, scaled))), Clear)


def test_an_infinity_that_is_swallowed_again() -> None:
    overflow = {"op": "sum", "module": "norm", "line": "train.py:18", "count": 4, "largest": 9e3}
    exams = {"half_gradients": {"dtypes": ["float16"], "overflow": overflow, "step": 0}}
    found = fp16_overflow(make_record({"loss.root": [4.0] * 4}, exams=exams))
    assert isinstance(found, Finding)
    assert (found.line, found.where) == ("train.py:18", "norm")
    exams["half_gradients"]["overflow"] = None
    finite = {"loss.root": [4.0] * 4, "grad.norm": [1.0] * 4}
    assert isinstance(fp16_overflow(make_record(finite, exams=exams)), Clear)


def test_float32_bfloat16_and_a_right_scale_are_silent() -> None:
    assert isinstance(fp16_underflow(half(["float32"], lost=0.0)), Clear)
    assert isinstance(fp16_underflow(half(["bfloat16"], weights="bfloat16")), Clear)
    assert isinstance(fp16_underflow(half(["float16", "float32"], lost=0.02)), Clear)


def updates(lost: list[float], rates: list[float] | None = None) -> Record:
    return make_record(
        {"optim.lr": rates or [1e-4] * len(lost), "loss.root": [4.0] * 20},
        layers={"update.lost": {"a": lost, "b": lost}},
    )


def test_updates_that_are_rounded_away() -> None:
    found = low_precision_updates_lost(updates([0.97] * 6))
    assert isinstance(found, Finding)
    assert isinstance(low_precision_updates_lost(updates([0.002] * 6)), Clear)


def copies(loss: float) -> dict[str, Any]:
    """The same steps with float32 copies of the weights, which end at this loss; without them at 2.0."""
    control = {"loss": 2.0, "blown": False}
    return {
        "start": 0,
        "steps": 30,
        "before": 3.0,
        "control": control,
        "permuted": [control, control],
        "variants": {"float32 copy": {"loss": loss, "blown": False}},
        "fidelity": 0.0,
    }


def test_a_run_that_learns_is_sick_where_float32_copies_make_it_better() -> None:
    def judge(lost: float, exam: dict[str, Any] | None) -> Any:
        falling = {"loss.root": [4.0 * 0.9**k for k in range(60)]}
        layers = {"update.lost": {"a": [lost] * 6, "b": [lost] * 6}}
        exams = {} if exam is None else {"experiment_precision": exam}
        return low_precision_updates_lost(make_record(falling, layers=layers, exams=exams))

    for share in (0.3, 0.6, 0.95):
        better = judge(share, copies(1.7))
        assert isinstance(better, Finding)
        assert better.status == "confirmed"
        same = judge(share, copies(1.99))
        assert isinstance(same, Clear)
        assert "no better" in same.by
    asked = [judge(0.3, None), judge(0.6, None)]
    assert [type(one) for one in asked] == [NotJudged, Finding]
    assert [one.wants for one in asked] == ["experiment_precision"] * 2
    assert asked[1].status == "possible"
    assert isinstance(judge(0.1, None), Clear)
    # What did not learn is sick by the law, whatever else is wrong with it.
    stuck = updates([0.97] * 6)
    assert low_precision_updates_lost(stuck).status == "confirmed"  # type: ignore[union-attr]


def test_the_stage_before_does_not_speak_for_this_one() -> None:
    layers = {"update.lost": {"a": [0.0] * 12 + [0.9] * 8}}
    record = make_record({"loss.root": [4.0] * 20}, layers=layers)
    objects = Series("optim.objects", np.array([0, 10]), np.array([1.0, 2.0]))
    record._series["optim.objects"] = objects
    found = low_precision_updates_lost(record)
    assert isinstance(found, Finding)
    assert found.since_step == 10


def test_a_stage_that_learns_is_not_measured_by_the_stage_before() -> None:
    """Fine-tuning begins at a higher loss than the training before it ended at."""
    falling = [4.0 * 0.9**k for k in range(60)]
    layers = {"update.lost": {"a": [0.0] * 60 + [0.6] * 60}}
    record = make_record({"loss.root": falling * 2}, layers=layers)
    objects = Series("optim.objects", np.array([0, 60]), np.array([1.0, 2.0]))
    record._series["optim.objects"] = objects
    found = low_precision_updates_lost(record)
    assert isinstance(found, Finding)
    assert (found.status, found.wants) == ("possible", "experiment_precision")


def test_half_weights_that_a_script_steps_itself() -> None:
    def judge(
        observed: float, unmoved: float = 0.85, expected: float = 7000.0, slope: float = 0.001
    ) -> object:
        moves = {"observed": observed, "expected": expected, "unmoved": unmoved, "dtype": "float16"}
        crawling = {"loss.root": [2.0 - slope * k for k in range(60)]}
        return low_precision_updates_lost(
            make_record(crawling, facts={"weights.half_moves": moves})
        )

    found = judge(5.0)
    assert isinstance(found, Finding)
    assert found.status == "likely"
    assert isinstance(judge(6000.0), Clear)  # a master copy
    assert isinstance(judge(5.0, unmoved=0.2), Clear)  # long updates
    assert isinstance(judge(0.0, expected=8.0), NotJudged)
    # Runs that learn: slowly, where most updates are lost; well; and where many get through.
    speeds = [judge(5.0, slope=0.016), judge(5.0, slope=0.03), judge(5.0, 0.6, slope=0.016)]
    assert [found.status for found in speeds] == ["likely", "possible", "possible"]
    assert isinstance(low_precision_updates_lost(make_record({"loss.root": [2.0] * 9})), NotJudged)


def test_a_rate_that_has_decayed_is_no_fault() -> None:
    late = updates([0.1, 0.3, 0.6, 0.9, 0.95, 0.99], [1e-3, 1e-3, 5e-4, 1e-4, 1e-5, 1e-6])
    assert isinstance(low_precision_updates_lost(late), Clear)


def test_squares_that_end_too_early_break_the_optimizers_rule() -> None:
    def judged(shares: list[float]) -> Any:
        layers = {"adam.lost": {"head": [0.0, 0.0], "a": shares, "b": shares}}
        return fp16_underflow(make_record({"loss.root": [4.0, 3.9]}, layers=layers))

    found = judged([0.61, 0.5])
    assert isinstance(found, Finding)
    assert (found.status, found.where) == ("confirmed", "a")
    assert isinstance(judged([0.0, 0.001]), NotJudged)  # the gradient itself is asked about
