"""Every module alone, operators that torch cannot look into, and one batch learned by heart."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hand_written import VOCABULARY as V
from hand_written import operator_patient
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.checks.gradient.backward_incorrect import backward_incorrect
from traindoctor.exams.finite_difference import finite_difference
from traindoctor.exams.functions_alone import functions_alone
from traindoctor.exams.layers_alone import layers_alone
from traindoctor.exams.overfit_batch import overfit_batch
from traindoctor.exams.tape_gradient import tape_gradient
from traindoctor.experiment.patient import Patient
from traindoctor.ground.names import Names
from traindoctor.record import make_record


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_the_innermost_module_is_named_first(factor: float) -> None:
    result = layers_alone(operator_patient(factor))
    assert result.outcome == "done", result.reason
    layers = {layer["module"]: layer for layer in result.values["layers"]}
    # dropout's mask replays, the padding row is left alone, kinks of the ReLU are no errors
    assert {"token", "block", "block.self_attn", "block.norm1", "squared", "head", "(loss)"} <= set(
        layers
    )
    wrong = [name for name, layer in layers.items() if layer["outcome"] == "wrong"]
    assert wrong == ([] if factor == 1.0 else ["squared", "(model)"])
    assert not any(layer["outcome"] == "undecided" for layer in layers.values())
    if factor != 1.0:
        assert layers["squared"]["pattern"] == "constant factor 1.5"


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_registered_operator_is_tested_from_outside(factor: float) -> None:
    examined = operator_patient(factor)
    exams = [tape_gradient(examined), functions_alone(examined)]
    # Its own backward made the reference too: the replay cannot see the error.
    assert exams[0].values["difference"] == 0.0
    assert exams[0].values["opaque"] == ["square"]
    [alone] = exams[1].values["functions"]
    assert alone["test"] == "finite differences"
    outcome = backward_incorrect(make_record({}, exams=exams))
    if factor == 1.0:
        assert type(outcome).__name__ == "Clear"
    else:
        assert (outcome.where, alone["pattern"]) == ("square", "constant factor 1.5")


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_what_alone_cannot_decide_is_asked_of_the_whole_loss(factor: float) -> None:
    examined = operator_patient(factor)
    whole = tape_gradient(examined)
    alone = {"functions": [{"name": "square", "line": None, "test": "none"}]}
    exams: dict[str, Any] = {"tape_gradient": whole.values, "functions_alone": alone}
    asked = backward_incorrect(make_record({}, exams=exams))
    assert asked.wants == "finite_difference"  # type: ignore[union-attr]
    exams["finite_difference"] = finite_difference(examined).values
    outcome = backward_incorrect(make_record({}, exams=exams))
    assert type(outcome).__name__ == ("Clear" if factor == 1.0 else "Finding")


def overfitted(targets: Tensor, smoothing: float = 0.0) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(V, 16), nn.Flatten(), nn.Linear(16 * 3, 2))
    x = torch.randint(V, (6, 3))
    x[1] = x[0]
    made = Patient(names=Names(model), model=model)
    loss = functools.partial(F.cross_entropy, target=targets, label_smoothing=smoothing)
    made.add_tape(tape_step(lambda: loss(model(x)), model))
    return dict(overfit_batch(made).values)


def test_one_batch_is_learned_down_to_its_contradictions() -> None:
    sound = overfitted(torch.tensor([0, 0, 1, 0, 1, 1]))
    assert (sound["floor"], sound["learned"], sound["stalled"]) == (0.0, True, False)
    # The first two rows are the same and have different answers: ln 2 each is left.
    torn = overfitted(torch.tensor([0, 1, 1, 0, 1, 1]))
    assert torn["floor"] == pytest.approx(2 * 0.693147 / 6, rel=1e-4)
    assert torn["learned"]
    # Smoothed targets of two classes: 0.95 and 0.05 are left of one, a half each of a contradiction.
    smooth = overfitted(torch.tensor([0, 1, 1, 0, 1, 1]), smoothing=0.1)
    one = -0.95 * math.log(0.95) - 0.05 * math.log(0.05)
    assert smooth["floor"] == pytest.approx((4 * one + 2 * math.log(2)) / 6, rel=1e-4)
    assert smooth["learned"]


def test_what_a_second_look_up_tells_is_no_contradiction() -> None:
    """The same prefix after two sources: an encoder-decoder has something to go by."""
    torch.manual_seed(0)
    model = nn.ModuleDict({n: nn.Embedding(V, 16) for n in ("source", "prefix")})
    model["head"] = nn.Linear(32, 4)
    source, prefix = torch.tensor([[1], [2]]), torch.tensor([[3], [3]])
    made = Patient(names=Names(model), model=model)

    def loss() -> Tensor:
        joined = torch.cat([model["source"](source), model["prefix"](prefix)], -1)
        return F.cross_entropy(model["head"](joined).flatten(0, 1), torch.tensor([0, 1]))

    made.add_tape(tape_step(loss, model))
    assert overfit_batch(made).values["floor"] == 0.0


def test_a_gradient_that_does_not_flow_stalls() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    made = Patient(names=Names(model), model=model)
    made.add_tape(tape_step(lambda: F.cross_entropy(model(x) * 1e-4, y), model))
    values = overfit_batch(made).values
    assert values["stalled"]
    assert not values["learned"]
