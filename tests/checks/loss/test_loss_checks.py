"""Checks of the loss family on records written by hand: sick, healthy twin, look-alike."""

from __future__ import annotations

from typing import Any

import pytest

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.loss.all_targets_ignored import all_targets_ignored
from traindoctor.checks.loss.double_softmax import double_softmax
from traindoctor.checks.loss.loss_gradient_mismatch import loss_gradient_mismatch
from traindoctor.checks.loss.loss_scale_wrong import loss_scale_wrong
from traindoctor.checks.loss.unstable_softmax import unstable_softmax
from traindoctor.record import ExamResult, Record, make_record

SGD = [{"class": "SGD", "groups": [{"lr": 0.1}]}]
ADAM = [{"class": "AdamW", "groups": [{"lr": 0.1, "eps": 1e-8}]}]
FALLING = [4.0 - 0.1 * i for i in range(30)]
RISING = [4.0 * 1.3**i for i in range(30)]


def mismatch(
    cosine: float,
    difference: float = 0.0,
    was_read: bool = True,
    apart: bool = False,
    step: int = 0,
) -> Record:
    return make_record(
        exams={
            "printed_loss": {
                "step": step,
                "apart": apart,
                "cosine": cosine,
                "was_read": was_read,
                "reads": [{"value": 4.6, "cosine": cosine, "line": "train.py:9"}],
                "optimised": [{"value": 0.9, "line": "train.py:12"}],
            },
            "tape_gradient": {"difference": difference},
        }
    )


def test_gradients_of_other_parameters_are_named() -> None:
    swapped = {"swapped": {"k.weight": "q.weight", "q.weight": "k.weight"}, "by_hand": None}
    record = mismatch(1.0)
    exams = [*record.exam_results, ExamResult("gradient_arrival", 1, "done", swapped)]
    found = loss_gradient_mismatch(make_record(exams=exams))
    assert isinstance(found, Finding)
    assert (found.status, found.where) == ("confirmed", "k.weight")


def test_another_loss_is_named_with_both_lines() -> None:
    found = loss_gradient_mismatch(mismatch(0.002))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert found.line == "train.py:12"
    assert "train.py:9" in found.summary
    beside = loss_gradient_mismatch(mismatch(0.002, was_read=False))
    assert isinstance(beside, Finding)
    assert beside.status == "likely"


def test_a_term_without_gradient_is_named_by_its_line() -> None:
    record = mismatch(1.0)
    term = {"value": 2.0, "line": "train.py:20", "share": 0.9}
    (printed, gradient) = record.exam_results
    exams = {"printed_loss": {**printed.values, "unheard": term}, "tape_gradient": gradient.values}
    found = loss_gradient_mismatch(make_record(exams=exams))
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("confirmed", "train.py:20")
    exams["printed_loss"]["unheard"] = {**term, "share": 0.01}
    assert isinstance(loss_gradient_mismatch(make_record(exams=exams)), Clear)


def test_the_printed_loss_clears_and_a_wrong_backward_is_not_this_cause() -> None:
    assert isinstance(loss_gradient_mismatch(mismatch(0.9999)), Clear)
    assert isinstance(loss_gradient_mismatch(mismatch(0.5, difference=700.0)), Clear)
    asked = loss_gradient_mismatch(make_record())
    assert isinstance(asked, NotJudged)
    assert asked.wants == "printed_loss"


def test_two_losses_computed_apart_are_compared_again_later() -> None:
    early = loss_gradient_mismatch(mismatch(0.993, apart=True))
    assert isinstance(early, NotJudged)
    assert early.wants == "printed_loss"
    assert isinstance(loss_gradient_mismatch(mismatch(0.4, apart=True, step=60)), Finding)
    assert isinstance(loss_gradient_mismatch(mismatch(0.96, apart=True, step=60)), Clear)


def test_a_refused_exam_is_wanted_again() -> None:
    refused = ExamResult("printed_loss", 0, "refused", {}, "nothing was read")
    asked = loss_gradient_mismatch(make_record(exams=[refused]))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "printed_loss"


def scaled(
    coefficient: float,
    *,
    calls: int = 1,
    backwards: int | None = None,
    losses: list[float] = FALLING,
    optimizer: Any = SGD,
    scale: float = 1.0,
    arrived: float = 1.0,
    valid: float = 96.0,
    divided: float | None = None,
    without: float | None = None,
) -> Record:
    """`divided`: the factor that the script puts on its gradients; `without`: the replayed loss without it."""
    main = {
        "line": "train.py:7",
        "kind": "cross_entropy",
        "reduction": "mean",
        "calls": calls,
        "coefficient": coefficient,
        "valid": valid,
    }
    values = {
        "main": main,
        "groups": [main],
        "backwards": backwards or calls,
        "scale": scale,
        "arrived": arrived,
        "arrived_cosine": 1.0,
    }
    return make_record(
        {"loss.root": losses},
        facts={"optimizer.groups": optimizer},
        exams={
            "loss_coefficient": values,
            "gradient_arrival": {"by_hand": divided and "factor", "value": divided},
        }
        | ({} if without is None else {"experiment_loss_scale": undivided(without)}),
    )


def undivided(loss: float) -> dict[str, Any]:
    def one(value: float) -> dict[str, Any]:
        return {"loss": value, "blown": False, "losses": []}

    trials = {"control": one(4.4), "permuted": [one(4.41), one(4.4)]}
    variants = {"gradients undivided": one(loss)}
    return {"start": 0, "steps": 40, "before": 4.6, "variants": variants, "fidelity": 0.0} | trials


def test_gradients_divided_by_hand_on_a_mean_are_tried_and_named() -> None:
    asked = loss_scale_wrong(scaled(1.0, divided=1 / 2048))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "experiment_loss_scale"
    found = loss_scale_wrong(scaled(1.0, divided=1 / 2048, without=3.2))
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert isinstance(loss_scale_wrong(scaled(1.0, divided=1 / 2048, without=4.4)), Clear)
    assert isinstance(loss_scale_wrong(scaled(96.0, divided=1 / 96)), Clear), "a sum, divided"
    assert isinstance(loss_scale_wrong(scaled(8.0, calls=8, divided=1 / 8)), Clear)


@pytest.mark.parametrize(("coefficient", "word"), [(8.0, "not averaged"), (1 / 8, "divided twice")])
def test_accumulation_that_is_not_divided_or_divided_twice(coefficient: float, word: str) -> None:
    found = loss_scale_wrong(scaled(coefficient, calls=8))
    assert isinstance(found, Finding)
    assert word in found.summary
    assert found.status == "confirmed"
    assert found.evidence[0].value == pytest.approx(coefficient)


def divergence(
    classes: int | None, *, weight: float = 4.0, beside: bool = True, temperature: float = 1.0
) -> Record:
    """A divergence with a weight, averaged over so many classes; perhaps beside a cross-entropy."""
    record = scaled(weight)
    values = record.exam("loss_coefficient").values
    main = values["main"] | {
        "kind": "kl_div",
        "over_classes": classes,
        "temperature": temperature,
    }
    other = values["main"] | {"coefficient": 0.2, "over_classes": None}
    groups = [main, other] if beside else [main]
    return make_record(
        {"loss.root": FALLING},
        facts={"optimizer.groups": ADAM},
        exams={
            "loss_coefficient": values | {"main": main, "groups": groups},
            "gradient_arrival": {"by_hand": None, "value": None},
        },
    )


def test_a_divergence_that_is_averaged_over_its_classes_too() -> None:
    found = loss_scale_wrong(divergence(48))
    assert isinstance(found, Finding)
    assert found.status == "likely"
    assert "48 times too small" in found.summary
    # Alone it has no other term to be small against; few classes, or a weight that makes up for them, may be meant.
    assert isinstance(loss_scale_wrong(divergence(48, beside=False)), Clear)
    assert isinstance(loss_scale_wrong(divergence(48, weight=7.9)), Clear)
    assert isinstance(loss_scale_wrong(divergence(None)), Clear)
    # The square of the temperature only makes up for smaller gradients.
    warm = loss_scale_wrong(divergence(40, weight=14.4, temperature=4.0))
    assert isinstance(warm, Finding)
    assert warm.evidence[0].value == pytest.approx(0.9 / 40)


def test_a_weight_of_a_half_may_be_meant() -> None:
    found = loss_scale_wrong(scaled(0.5, calls=2))
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_adam_in_a_run_that_learns_makes_it_a_possibility() -> None:
    found = loss_scale_wrong(scaled(8.0, calls=8, optimizer=ADAM))
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_divided_accumulation_and_weights_of_terms_are_silent() -> None:
    assert isinstance(loss_scale_wrong(scaled(1.0, calls=4)), Clear)
    # A mean that is taken in two pieces, in each of two micro-batches.
    assert isinstance(loss_scale_wrong(scaled(1.0, calls=4, backwards=2)), Clear)
    assert isinstance(loss_scale_wrong(scaled(2.0, calls=4, backwards=2)), Clear)
    assert isinstance(loss_scale_wrong(scaled(0.5)), Clear)
    assert isinstance(loss_scale_wrong(scaled(2.0)), Clear)


def test_a_sum_that_breaks_the_run_is_named_and_a_sum_that_does_not_is_silent() -> None:
    found = loss_scale_wrong(scaled(96.0, losses=RISING))
    assert isinstance(found, Finding)
    assert "summed over 96 targets" in found.summary
    assert isinstance(loss_scale_wrong(scaled(96.0, optimizer=ADAM)), Clear)


def test_a_scale_that_is_never_undone() -> None:
    found = loss_scale_wrong(scaled(1.0, scale=65536.0, arrived=1.0))
    assert isinstance(found, Finding)
    assert found.evidence[0].value == 65536.0
    assert isinstance(loss_scale_wrong(scaled(1.0, scale=65536.0, arrived=1 / 65536)), Clear)


def given(kind: str, **values: Any) -> Record:
    site = {
        "line": "train.py:5",
        "kind": kind,
        "classes": 10,
        "steps": 3,
        "rows": 64,
        "valid": 64,
        "finite_rows": 64,
        "probabilities": False,
        "log_probabilities": False,
        "between_0_and_1": False,
        "made_by": {"op": "linear", "line": "train.py:4", "module": "head"},
        "lowest": -3.0,
        "highest": 3.0,
    }
    return make_record(exams={"loss_input": {"sites": [{**site, **values}]}})


SOFTMAX = {"op": "softmax", "line": "train.py:3", "module": "head"}


@pytest.mark.parametrize("kind", ["cross_entropy", "log_softmax_gather", "logsumexp_gather"])
def test_probabilities_where_logits_are_expected(kind: str) -> None:
    found = double_softmax(given(kind, probabilities=True, made_by=SOFTMAX))
    assert isinstance(found, Finding)
    assert found.line == "train.py:3"


def test_nll_loss_wants_logarithms() -> None:
    assert isinstance(double_softmax(given("nll_loss", probabilities=True)), Finding)
    assert isinstance(double_softmax(given("nll_loss")), Finding)
    assert isinstance(double_softmax(given("nll_loss", log_probabilities=True, highest=0.0)), Clear)


def test_a_sigmoid_before_a_loss_with_logits() -> None:
    kind = "binary_cross_entropy_with_logits"
    made = {"op": "sigmoid", "line": "train.py:3", "module": "head"}
    sick = given(kind, classes=1, between_0_and_1=True, made_by=made)
    assert isinstance(double_softmax(sick), Finding)
    assert isinstance(double_softmax(given(kind, classes=1, between_0_and_1=True)), Clear)


def test_logits_and_log_probabilities_into_cross_entropy_are_silent() -> None:
    assert isinstance(double_softmax(given("cross_entropy")), Clear)
    assert isinstance(double_softmax(given("cross_entropy", log_probabilities=True)), Clear)
    few = given("cross_entropy", probabilities=True, steps=1, finite_rows=2)
    assert isinstance(double_softmax(few), Clear)


def test_no_valid_target() -> None:
    found = all_targets_ignored(make_record({"target.valid": [0] * 5, "target.total": [96] * 5}))
    assert isinstance(found, Finding)
    assert found.since_step == 0
    sites = {"sites": [{"valid": 0, "rows": 40}]}
    assert isinstance(all_targets_ignored(make_record(exams={"loss_input": sites})), Finding)


def test_padding_and_one_empty_batch_are_silent() -> None:
    some = make_record({"target.valid": [12] * 19 + [0], "target.total": [96] * 20})
    assert isinstance(all_targets_ignored(some), Clear)
    assert isinstance(all_targets_ignored(make_record()), NotJudged)
    none = make_record(exams={"loss_input": {"sites": []}})
    assert isinstance(all_targets_ignored(none), NotJudged)


def broke(
    op: str,
    *,
    weight: float = 1.2,
    dtype: str = "float32",
    chain: list[str] | None = None,
    losses: tuple[float, ...] = (4.0, 3.9, 3.8, 3.8, 3.7, 3.6),
) -> Record:
    values = {
        "op": op,
        "line": "train.py:60",
        "package_line": None,
        "module": "",
        "phase": "forward",
        "dtype": dtype,
        "inputs": [{"shape": [4], "min": 50.0, "max": 88.98, "smallest": 50.0, "infinite": 0}],
        "count": 2,
        "step": 6,
        "chain": chain or [],
        "largest_weight": weight,
        "largest_weight_at_start": 1.0,
    }
    return make_record(
        {"loss.root": [*losses, float("nan")]},
        exams={"first_nonfinite": values},
    )


def test_an_exp_that_overflows_with_calm_weights() -> None:
    found = unstable_softmax(broke("exp"))
    assert isinstance(found, Finding)
    assert (found.line, found.since_step) == ("train.py:60", 6)
    assert isinstance(unstable_softmax(broke("log", chain=["add", "softmax"])), Finding)


def test_a_loss_near_zero_that_jumps_is_no_runaway() -> None:
    nearly_learned = broke("exp", losses=(4.0, 1.0, 0.1, 0.02, 0.001, 0.05))
    assert isinstance(unstable_softmax(nearly_learned), Finding)
    running_away = broke("exp", losses=(4.0, 3.0, 3.5, 4.0, 60.0, 900.0))
    assert isinstance(unstable_softmax(running_away), Clear)


def test_other_ops_blown_up_weights_and_finite_runs_are_silent() -> None:
    assert isinstance(unstable_softmax(broke("div")), Clear)
    assert isinstance(unstable_softmax(broke("log", chain=["add"])), Clear)
    assert isinstance(unstable_softmax(broke("exp", weight=3e14)), Clear)
    assert isinstance(unstable_softmax(broke("exp", dtype="float16")), Clear)
    finite = {"loss.root": FALLING, "grad.norm": [1.0] * len(FALLING)}
    assert isinstance(unstable_softmax(make_record(finite)), Clear)
    assert isinstance(unstable_softmax(make_record({"loss.root": FALLING})), NotJudged)


def test_a_run_that_broke_asks_for_the_exam() -> None:
    asked = unstable_softmax(make_record({"loss.root": [4.0, float("nan")]}))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "first_nonfinite"
