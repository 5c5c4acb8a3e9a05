"""Checks of the gradient family (without clipping) on records written by hand."""

from __future__ import annotations

import math
from typing import Any

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.gradient.backward_incorrect import backward_incorrect
from traindoctor.checks.gradient.gradient_not_flowing import gradient_not_flowing
from traindoctor.checks.gradient.gradients_exploding import gradients_exploding
from traindoctor.checks.gradient.gradients_vanishing import gradients_vanishing
from traindoctor.checks.gradient.missing_zero_grad import missing_zero_grad
from traindoctor.record import Record, make_record


def test_old_gradients_on_every_step() -> None:
    found = missing_zero_grad(make_record({"grad.leftover_norm": [0.0] + [2.0] * 9}))
    assert isinstance(found, Finding)
    assert (found.status, found.since_step) == ("confirmed", 1)


def test_accumulation_and_a_resumed_start_are_silent() -> None:
    clean = make_record({"grad.leftover_norm": [0.0] * 20, "backward.calls": [4] * 20})
    assert isinstance(missing_zero_grad(clean), Clear)
    assert isinstance(
        missing_zero_grad(make_record({"grad.leftover_norm": [3.0] + [0.0] * 9})), Clear
    )


def test_gradients_that_a_script_takes_itself_do_not_add_up() -> None:
    by_hand = make_record({"backward.into_grad": [0.0] * 20})
    assert isinstance(missing_zero_grad(by_hand), NotApplicable)
    assert isinstance(missing_zero_grad(make_record({"backward.into_grad": [0.0] * 3})), NotJudged)


def test_tapes_stand_in_for_a_series_that_is_too_short() -> None:
    steps = [{"step": step, "leftover": 0.0 if step == 0 else 1.9} for step in range(3)]
    record = make_record({"grad.leftover_norm": [0.0]}, exams={"tape_gradient": {"steps": steps}})
    assert isinstance(missing_zero_grad(record), Finding)
    asked = missing_zero_grad(make_record())
    assert isinstance(asked, NotJudged)
    assert asked.wants == "tape_gradient"


def test_one_of_two_optimizers_that_is_never_cleared_is_enough() -> None:
    nothing = float("nan")
    record = make_record(
        {"grad.leftover_norm": [0.0, 0.0] + [2.0, 0.0] * 9},
        layers={
            "grad.leftover_by_optimizer": {
                "optimizer 0": [0.0, nothing] + [2.0, nothing] * 9,
                "optimizer 1": [nothing, 0.0] + [nothing, 0.0] * 9,
            }
        },
        facts={"optimizer.groups": [{"class": "Adam", "groups": []}] * 2},
    )
    found = missing_zero_grad(record)
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert "one of the optimizers" in found.summary


def gradients(
    difference: float, functions: list[dict[str, Any]] | None = None, **more: Any
) -> Record:
    values = {
        "step": 0,
        "difference": difference,
        "whole": difference,
        "noise": 1e-6,
        "opaque": [],
        "hooked": [],
        "turned": 0,
        "last_step": 8,
        "wrong": 1,
        "parameters": 4,
        "world_size": 1,
        "worst": [{"name": "head.weight", "pattern": "constant factor 768"}],
        **more,
    }
    exams: dict[str, Any] = {"tape_gradient": values}
    if functions is not None:
        exams["functions_alone"] = {"functions": functions}
    return make_record(exams=exams)


def function(difference: float, **more: Any) -> dict[str, Any]:
    return {
        "name": "FusedLoss",
        "line": "train.py:84",
        "test": "tape",
        "difference": difference,
        "noise": 1e-6,
        "factor": 768.0,
        "pattern": "constant factor 768",
        "identity": False,
        "surrogate": False,
        **more,
    }


def test_the_guilty_function_is_named_with_factor_and_line() -> None:
    found = backward_incorrect(gradients(767.0, [function(1e-8, name="Right"), function(767.0)]))
    assert isinstance(found, Finding)
    assert (found.where, found.line, found.status) == ("FusedLoss", "train.py:84", "confirmed")
    assert any(item.value == 768.0 for item in found.evidence)


def test_a_right_gradient_clears_and_a_wrong_one_asks_for_its_functions() -> None:
    assert isinstance(backward_incorrect(gradients(0.0)), Clear)
    assert isinstance(backward_incorrect(gradients(9e-7)), Clear)
    asked = backward_incorrect(gradients(0.2))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "functions_alone"


def test_gradients_changed_on_purpose_are_no_fault() -> None:
    reverse = function(1.3, identity=True, factor=-0.3, pattern="constant factor -0.3")
    found = backward_incorrect(gradients(1.3, [reverse]))
    assert isinstance(found, Finding)
    assert found.status == "possible"
    straight_through = function(float("inf"), surrogate=True)
    assert isinstance(backward_incorrect(gradients(1.0, [straight_through])), Clear)
    beside = [straight_through, function(1e-8, name="Right")]
    assert isinstance(backward_incorrect(gradients(1.0, beside)), Clear)
    untested = [straight_through, function(0.0, name="Unknown", test="none")]
    assert not isinstance(backward_incorrect(gradients(1.0, untested)), Clear)
    assert isinstance(backward_incorrect(gradients(0.5, [], hooked=["a.weight"])), Clear)
    assert isinstance(backward_incorrect(gradients(0.5, [], world_size=2)), NotJudged)


def test_a_hook_that_leaves_nothing_of_the_gradient_is_named() -> None:
    found = backward_incorrect(gradients(1.4, [], hooked=["train.py:31"], turned=3, wrong=4))
    assert isinstance(found, Finding)
    assert (found.line, found.status) == ("train.py:31", "likely")


def test_noise_of_low_precision_is_no_error() -> None:
    assert isinstance(backward_incorrect(gradients(0.02, noise=0.06)), Clear)


def flow(blocked: int, share: float = 0.7, trainable: int = 40) -> Record:
    cut = {"kind": "detach", "line": "train.py:54", "module": "", "parameters": blocked}
    return make_record(
        exams={
            "gradient_flow": {
                "trainable": trainable,
                "silent": blocked,
                "blocked": blocked,
                "names": ["token.weight"],
                "cuts": [cut] if blocked else [],
                "escapes": [],
                "share_of_gradient": share if blocked else 0.0,
            }
        }
    )


def test_a_cut_is_named_with_its_line() -> None:
    found = gradient_not_flowing(flow(26))
    assert isinstance(found, Finding)
    assert (found.line, found.where, found.status) == ("train.py:54", "token.weight", "confirmed")
    assert isinstance(gradient_not_flowing(flow(0)), Clear)


def test_values_that_leave_torch_are_likely_to_be_missed() -> None:
    values = flow(0).exam("gradient_flow").values
    escape = {"function": "numpy", "line": "model.py:58", "module": "embed"}
    left = dict(values) | {"left": ["embed.weight"], "escapes": [escape]}
    found = gradient_not_flowing(make_record(exams={"gradient_flow": left}))
    assert isinstance(found, Finding)
    assert (found.status, found.line) == ("likely", "model.py:58")


def test_one_scale_held_fixed_is_only_possible() -> None:
    found = gradient_not_flowing(flow(1, share=0.01))
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_norms_that_grow_without_bound() -> None:
    found = gradients_exploding(
        make_record({"grad.norm": [1.0] * 10 + [10.0**k for k in range(1, 9)]})
    )
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_activations_that_grow_until_a_product_overflows() -> None:
    def crash(size: float) -> Record:
        values = {
            "op": "matmul",
            "step": 36,
            "line": "train.py:39",
            "package_line": None,
            "module": "blocks.0",
            "weights_finite": True,
            "largest_weight": 3.0,
            "inputs": [{"min": -size, "max": size, "smallest": 1.0}],
        }
        return make_record({"grad.norm": [1.0] * 20}, exams={"first_nonfinite": values})

    found = gradients_exploding(crash(1e23))
    assert isinstance(found, Finding)
    assert (found.line, found.since_step) == ("train.py:39", 36)
    # one norm alone tells nothing of a later step; the untrained model needs none
    once = {"exams": {"first_nonfinite": crash(1e23).exam("first_nonfinite").values}}
    broke_later = make_record({"loss.root": [4.0, math.nan], "grad.norm": [1.0]}, **once)
    assert isinstance(gradients_exploding(broke_later), NotJudged)
    broken = make_record({"loss.root": [math.nan] * 9, "grad.norm": [math.nan]}, **once)
    assert isinstance(gradients_exploding(broken), Finding)
    assert isinstance(gradients_exploding(crash(40.0)), Clear)


def test_a_run_that_breaks_at_once_is_known_by_its_weights() -> None:
    def broke(largest: float) -> Record:
        crash = {"op": "rnn_relu", "step": 4, "line": None, "package_line": None, "module": "rnn"}
        sizes = {"largest_weight": largest, "largest_weight_at_start": 1.0, "weights_finite": True}
        series = {"loss.root": [4.4, 4.3, 30.0, 1e9, math.nan], "grad.norm": [6.4, *[math.nan] * 4]}
        return make_record(series, exams={"first_nonfinite": {**crash, **sizes, "inputs": []}})

    found = gradients_exploding(broke(1e6))
    assert isinstance(found, Finding)
    assert (found.status, found.since_step) == ("likely", 4)
    assert isinstance(gradients_exploding(broke(3.0)), NotJudged)


def test_a_norm_that_was_measured_with_an_update_counts_as_well() -> None:
    steps = {"loss.root": [4.4, 4.3, 30.0, float("nan")], "grad.norm": [6.4, 1.1, 1.6, 1.5]}
    # The run broke, and the norms that were taken do not say how: nothing is ruled out.
    assert isinstance(gradients_exploding(make_record(steps)), NotJudged)
    seen = make_record({**steps, "grad.norm_at_step": [6.4, 1.1, 1.6, 1.5, 2.3e3]})
    assert isinstance(gradients_exploding(seen), Finding)


def test_spikes_and_slow_growth_are_silent() -> None:
    assert isinstance(
        gradients_exploding(make_record({"grad.norm": [1.0] * 40 + [5e3] + [1.0] * 40})), Clear
    )
    assert isinstance(
        gradients_exploding(make_record({"grad.norm": [1.0 + k for k in range(50)]})), Clear
    )


def stack(ratio: float, losses: list[float]) -> Record:
    columns = {f"blocks.{k}.weight": [ratio ** (1 - k / 5)] * 3 for k in range(6)}
    return make_record({"loss.root": losses}, layers={"grad.rms": columns})


def test_a_gradient_that_fades_towards_the_input() -> None:
    flat, falling = [4.0] * 30, [4.0 - 0.1 * k for k in range(30)]
    found = gradients_vanishing(stack(1e-7, flat))
    assert isinstance(found, Finding)
    assert found.where == "blocks.*.weight"
    assert isinstance(gradients_vanishing(stack(1e-7, falling)), Clear)
    assert isinstance(gradients_vanishing(stack(0.1, flat)), Clear)
    alone = make_record(layers={"grad.rms": {"head.weight": [1.0]}})
    assert isinstance(gradients_vanishing(alone), NotApplicable)


def test_stages_of_other_sizes_are_no_stack() -> None:
    """A pyramid's later stages are wider: their gradients have another size by design."""
    flat = stack(1e-7, [4.0] * 30)
    shapes = [{"name": f"blocks.{k}.weight", "shape": [8 * 2 ** (k // 2), 8]} for k in range(6)]
    flat.facts["model.parameters"] = shapes
    assert isinstance(gradients_vanishing(flat), NotApplicable)
    flat.facts["model.parameters"] = [{**row, "shape": [8, 8]} for row in shapes]
    assert isinstance(gradients_vanishing(flat), Finding)


def test_a_bias_before_a_normalisation_has_no_gradient_anyway() -> None:
    record = stack(1e-7, [4.0] * 30)
    record.facts["model.parameters"] = [
        {"name": f"blocks.{k}.weight", "shape": [8]} for k in range(6)
    ]
    assert isinstance(gradients_vanishing(record), NotApplicable)


def test_steps_without_a_gradient_are_no_measure_of_the_others() -> None:
    norms = [0.0] * 30 + [1.8, 1.2, 0.9, 1.1] * 20
    assert isinstance(gradients_exploding(make_record({"grad.norm": norms})), Clear)
    grows = [0.0] * 30 + [0.01 * 1.6**k for k in range(40)]
    assert isinstance(gradients_exploding(make_record({"grad.norm": grows})), Finding)


def test_gradients_that_are_huge_in_the_untrained_model_explode() -> None:
    norms = [2.4e10, 840.0, 560.0, 420.0, 480.0]
    stuck = {"grad.norm": norms, "loss.root": [1e8, 6e3, *[7.0] * 40]}
    found = gradients_exploding(make_record(stuck))
    assert isinstance(found, Finding)
    assert "at initialisation" in found.summary
    large = {"grad.norm": [8e4, 840.0, 560.0, 420.0], "loss.root": [70.0, 50.0, *[7.0] * 40]}
    assert isinstance(gradients_exploding(make_record(large)), Clear)


def test_a_thousandth_of_the_gradient_is_enough_where_the_loss_does_not_move() -> None:
    assert isinstance(gradients_vanishing(stack(1e-3, [1.386] * 60)), Finding)
    slow = [1.386 - 0.003 * k for k in range(60)]
    assert isinstance(gradients_vanishing(stack(1e-3, slow)), Clear)
