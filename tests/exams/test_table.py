"""Every exam of the table on the fault that it is there for, and on the same patient without the fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import clouds
import grids
import planted
import pytest
import torch
from crashing_steps import CALM, crash
from hand_written import nested_patient, operator_patient

from short_runs import divided
from traindoctor.checks.base import Check, Clear, Finding
from traindoctor.checks.data.padding_in_loss import padding_in_loss
from traindoctor.checks.data.targets_misaligned import targets_misaligned
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.gradient.backward_incorrect import backward_incorrect
from traindoctor.checks.gradient.gradient_not_flowing import gradient_not_flowing
from traindoctor.checks.loss.double_softmax import double_softmax
from traindoctor.checks.loss.loss_gradient_mismatch import loss_gradient_mismatch
from traindoctor.checks.loss.loss_scale_wrong import loss_scale_wrong
from traindoctor.checks.model.attention_blind import attention_blind
from traindoctor.checks.model.attention_scale_wrong import attention_scale_wrong
from traindoctor.checks.model.attention_softmax_wrong_dim import attention_softmax_wrong_dim
from traindoctor.checks.model.causal_mask_leak import causal_mask_leak
from traindoctor.checks.model.dead_activations import dead_activations
from traindoctor.checks.model.init_too_large import init_too_large
from traindoctor.checks.model.init_too_small import init_too_small
from traindoctor.checks.model.norm_wrong import norm_wrong
from traindoctor.checks.model.position_missing import position_missing
from traindoctor.checks.model.residual_missing import residual_missing
from traindoctor.checks.model.weights_tied_by_mistake import weights_tied_by_mistake
from traindoctor.checks.model.wrong_train_eval_mode import wrong_train_eval_mode
from traindoctor.checks.numerics.fp16_underflow import fp16_underflow
from traindoctor.checks.optimizer.lr_too_low import lr_too_low
from traindoctor.checks.speed.python_loop_per_example import GAIN
from traindoctor.exams import EXAMS, batched_forward, load
from traindoctor.experiment.patient import Patient
from traindoctor.record import ExamResult, make_record

PLAIN = planted.scaled(1.0)
Tells = Callable[[ExamResult, Patient], bool]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """`tells`: whether the numbers say that the fault is there. The healthy twin may have nothing to ask about."""

    sick: Callable[[], Patient]
    healthy: Callable[[], Patient]
    tells: Tells
    refuses_the_healthy: bool = False


def numbers(says: Callable[[Values], bool]) -> Tells:
    return lambda result, _: bool(says(result.values))


def named_by(
    check: Check, *beside: str, series: Mapping[str, Sequence[float]] | None = None
) -> Tells:
    """The check that reads the exam names its cause; what it reads `beside` is measured on the same patient."""

    def tells(result: ExamResult, patient: Patient) -> bool:
        others = [load(name)(patient) for name in beside]
        outcome = check(make_record(series, exams=[*others, result]))
        assert isinstance(outcome, Finding | Clear), outcome
        return isinstance(outcome, Finding)

    return tells


def won_by(*variants: str) -> Tells:
    """One of the variants of an experiment learns better, as the checks of the optimizer read it."""

    def tells(result: ExamResult, _: Patient) -> bool:
        trial = Experiment.of(result)
        assert trial is not None
        assert trial.faithful
        assert set(variants) & set(trial.variants)
        return any(trial.wins(name) for name in variants)

    return tells


def differs(values: Values) -> bool:
    return values["difference"] > max(1e-4, 10 * values["noise"])


def twins(
    build: Callable[..., Patient],
    sick: Mapping[str, Any],
    healthy: Mapping[str, Any],
    tells: Tells,
) -> Row:
    return Row(partial(build, **sick), partial(build, **healthy), tells)


def transformers(tells: Tells, healthy: Mapping[str, Any] | None = None, **fault: Any) -> Row:
    return twins(planted.transformer, fault, healthy or {}, tells)


def classifiers(
    tells: Tells, sick: Any, healthy: Any = PLAIN, micro: tuple[int, ...] = (12,)
) -> Row:
    made = partial(planted.classifier, micro=micro)
    return Row(partial(made, sick), partial(made, healthy), tells)


def functions(tells: Tells, fault: str) -> Row:
    return twins(planted.by_function, {"fault": fault}, {"fault": "none"}, tells)


HEALTHY_RUN = {"make": torch.optim.AdamW, "rate": 1e-2, "weight_decay": 0.01}


def runs(tells: Tells, healthy: Mapping[str, Any] | None = None, **fault: Any) -> Row:
    return twins(planted.short_run, HEALTHY_RUN | fault, healthy or HEALTHY_RUN, tells)


SGD = {"make": torch.optim.SGD, "weight_decay": 0.0}
UNCLIPPED = {**SGD, "rate": 0.5, "limit": None}

HALF = HEALTHY_RUN | {"dtype": torch.bfloat16, "wide": 4.0, "rate": 3e-3}

BESIDE = {"mode.beside_training": [1.0] * 21, "mode.training": [1.0] * 21}

ROWS: dict[str, Row] = {
    "tape_gradient": functions(numbers(differs), "no mean"),
    "functions_alone": functions(named_by(backward_incorrect, "tape_gradient"), "tile"),
    "printed_loss": twins(
        planted.printing,
        {"another": True},
        {"another": False},
        named_by(loss_gradient_mismatch, "tape_gradient"),
    ),
    "loss_coefficient": classifiers(
        named_by(loss_scale_wrong, "gradient_arrival"),
        PLAIN,
        planted.scaled(0.25),
        micro=(12,) * 4,
    ),
    "gradient_flow": classifiers(named_by(gradient_not_flowing), planted.cut_in_the_middle),
    "loss_input": classifiers(named_by(double_softmax), planted.softmax_before_the_loss),
    "first_nonfinite": Row(
        partial(crash, "divide", CALM, torch.ones(4)),
        partial(crash, "divide", CALM, CALM + 1),
        numbers(lambda v: v["op"] is not None and v["weights_finite"]),
        refuses_the_healthy=True,
    ),
    "precision_ladder": classifiers(
        numbers(lambda v: v["rungs"]["float16"]["overflow"] is not None), planted.out_of_range
    ),
    "half_gradients": classifiers(
        named_by(fp16_underflow), planted.in_half(1e-7), planted.in_half(1.0)
    ),
    "accumulation": Row(
        partial(planted.classifier, planted.scaled(0.5), micro=(2, 22)),
        partial(planted.classifier, planted.scaled(0.5), micro=(12, 12)),
        numbers(lambda v: v["unevenness"] > 0.5),
    ),
    "finite_difference": functions(numbers(lambda v: v["outcome"] == "wrong"), "tile"),
    "kept_tensors": twins(
        planted.hoarding,
        {"graphs": True},
        {"graphs": False},
        numbers(lambda v: v["graph_nodes"] > 4 * v["step_ops"]),
    ),
    "layers_alone": twins(
        operator_patient,
        {"factor": 1.5},
        {"factor": 1.0},
        numbers(lambda v: any(layer["outcome"] == "wrong" for layer in v["layers"])),
    ),
    "guilty_module": Row(
        partial(nested_patient, 8, 6),
        partial(nested_patient, 8, 8),
        numbers(lambda v: v["outcome"] == "wrong" and v["module"] == "1.1.mix.1"),
    ),
    "batched_forward": Row(
        planted.call_bound, planted.work_bound, numbers(lambda v: v["gain"] - v["noise"] > GAIN)
    ),
    "shift": Row(
        partial(planted.transformer, planted.two_ahead),
        planted.transformer,
        named_by(targets_misaligned, "dependence"),
    ),
    "dependence": transformers(named_by(causal_mask_leak), mask="off by one"),
    "positions": twins(
        planted.unordered,
        {"places": False},
        {"places": True},
        named_by(position_missing, "order_matters"),
    ),
    "numbers_seen": twins(
        planted.forecaster,
        {"left": 1},
        {"left": 2},
        numbers(lambda v: any(pair["ahead"] and pair["own"] > 0 for pair in v["pairs"])),
    ),
    "rows_apart": twins(
        planted.patches,
        {"batch_first": False},
        {"batch_first": True},
        named_by(attention_blind, "dependence"),
    ),
    "example_order": Row(
        partial(clouds.examined, clouds.without_offset),
        partial(clouds.examined, clouds.offset_by_hand),
        numbers(lambda v: v["strayed"] > 0.5),
    ),
    "place_codes": Row(
        partial(grids.examined, lambda _, h: h + grids.waves(grids.ROW, grids.D)),
        partial(grids.examined, lambda _, h: h + grids.waves(grids.CELL, grids.D)),
        numbers(lambda v: "gap" in v and v["gap"] <= v["noise"] < v["replaced"]),
    ),
    "softmax_axis": transformers(
        named_by(attention_softmax_wrong_dim), {"mask": "none"}, dim=-2, mask="none"
    ),
    "attention_scores": transformers(named_by(attention_scale_wrong), factor=8.0),
    "init_scale": transformers(named_by(init_too_large), init=3.0),
    # Two zero layers one behind the other wait for the last one; two factors wait for each other.
    "zero_factors": Row(
        partial(planted.low_rank, "down", "up"),
        partial(planted.low_rank, "up", "head"),
        named_by(init_too_small, "init_scale", series={"loss.token": [1.0] * 20}),
    ),
    "input_dependence": transformers(numbers(lambda v: v["last"] < 1e-5), bias=-50.0, skip=False),
    "residual": transformers(
        named_by(residual_missing, series={"loss.root": [3.4] * 60}), skip=False
    ),
    "dead_units": transformers(named_by(dead_activations), bias=-50.0),
    "normalisation": transformers(named_by(norm_wrong), norm=planted.OverTime),
    "padding": Row(
        partial(planted.transformer, planted.padded(ignored=-100)),
        partial(planted.transformer, planted.padded(ignored=0)),
        named_by(padding_in_loss),
    ),
    "frozen_targets": twins(
        planted.taught,
        {"training": True},
        {"training": False},
        named_by(wrong_train_eval_mode, series=BESIDE),
    ),
    "sharing": twins(
        planted.one_block, {"times": 2}, {"times": 1}, named_by(weights_tied_by_mistake)
    ),
    "overfit_batch": twins(
        planted.faint,
        {"factor": 1e-4},
        {"factor": 1.0},
        numbers(lambda v: v["stalled"] or not v["learned"]),
    ),
    "reference_model": twins(
        planted.kept_batches,
        {"apart": True},
        {"apart": False},
        numbers(lambda v: v["held_out"] > v["guessing"] - 0.1),
    ),
    "pairing": twins(
        planted.paired,
        {"mixed": True},
        {"mixed": False},
        numbers(lambda v: v["losses"][0]["strange"] > 1),
    ),
    "order_matters": twins(
        planted.blanks,
        {"shuffled": False},
        {"shuffled": True},
        numbers(lambda v: v["gain"] > max(0.1, 3 * v["noise"])),
    ),
    "reference_numbers": twins(
        planted.kept_numbers,
        {"apart": True},
        {"apart": False},
        numbers(lambda v: v["held_out"] > 0.9),
    ),
    "outside_changes": runs(numbers(lambda v: v["tensors"] > 0), shrink=0.9),
    "gradient_arrival": runs(
        numbers(lambda v: v["by_hand"] is not None), UNCLIPPED, **UNCLIPPED, treat=divided
    ),
    "generation": twins(
        planted.writer, {"step": 0}, {"step": 1}, numbers(lambda v: v["greedy"]["loops"] > 0.9)
    ),
    "experiment_rate_down": runs(won_by("lr/10", "lr/100"), **SGD, rate=30.0),
    "experiment_rate_long": runs(won_by("lr/10", "warmup"), **SGD, rate=30.0),
    "experiment_rate_up": runs(named_by(lr_too_low, series={"optim.lr": [1.0] * 20}), rate=1e-6),
    "experiment_schedule": runs(won_by("highest rate"), falling=0.5),
    "experiment_decay": runs(won_by("no decay"), weight_decay=3.0),
    "experiment_decay_start": runs(won_by("no decay"), weight_decay=3.0),
    "experiment_clip": runs(won_by("limit*10", "limit*100"), **SGD, rate=0.5, limit=1e-3),
    "experiment_adam": runs(won_by("usual Adam settings"), eps=10.0),
    "experiment_precision": runs(won_by("float32 copy"), HALF | {"rate": 0.1}, **HALF),
    "experiment_loss_scale": runs(
        won_by("loss/n"), {**SGD, "rate": 0.5, "micro": 4}, **SGD, rate=8.0, micro=4
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _runs_end() -> Iterator[None]:
    """The shared runs hold optimizers: alive, they would be waited for wherever steps are counted."""
    yield
    planted.short_run.cache_clear()


@pytest.fixture(autouse=True)
def _own_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is timed is timed by its own CPU time, in one thread: other programs on the machine must not decide a row."""
    clock = SimpleNamespace(perf_counter=time.process_time)
    monkeypatch.setattr(batched_forward, "time", clock)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ROWS)
def test_the_planted_fault_is_told(name: str) -> None:
    row = ROWS[name]
    patient = row.sick()
    result = load(name)(patient)
    assert result.done, result.reason
    assert row.tells(result, patient)


@pytest.mark.parametrize("name", ROWS)
def test_the_healthy_twin_is_left_alone(name: str) -> None:
    row = ROWS[name]
    patient = row.healthy()
    result = load(name)(patient)
    if row.refuses_the_healthy:
        assert not result.done, result.values
        return
    assert result.done, result.reason
    assert not row.tells(result, patient)


def test_every_exam_of_the_table_has_a_row() -> None:
    assert set(ROWS) == set(EXAMS)
