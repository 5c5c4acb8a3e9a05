"""Rows of a picture by layer: the order of the model, and a row for what has no numbers."""

from __future__ import annotations

import numpy as np

from traindoctor.record import make_record
from traindoctor.report.downsample import HeatMap
from traindoctor.report.rows import in_model_order

MODEL = ["embed", "blocks.0.w", "blocks.1.w", "head"]


def parameters(*, frozen: tuple[str, ...] = (), tied: tuple[str, ...] = ()) -> list[dict]:
    return [
        {
            "name": name,
            "trainable": name not in frozen,
            "tied": list(tied) if name == "embed" else [],
        }
        for name in MODEL
    ]


def heat(*layers: str) -> HeatMap:
    values = np.arange(2 * len(layers), dtype=np.float32).reshape(2, -1)
    return HeatMap(layers, np.array([0, 5]), values, np.zeros(values.shape, bool))


def test_rows_stand_in_the_order_of_the_model() -> None:
    record = make_record(facts={"model.parameters": parameters()})
    found, absent = in_model_order(
        heat("blocks.1.w", "head", "blocks.0.w", "embed"), "grad.rms", record
    )
    assert found.layers == tuple(MODEL)
    assert found.values.tolist() == [[3, 2, 0, 1], [7, 6, 4, 5]]
    assert absent == {}


def test_a_parameter_without_gradient_has_a_row() -> None:
    record = make_record(facts={"model.parameters": parameters()})
    found, absent = in_model_order(heat("blocks.1.w", "head"), "grad.rms", record)
    assert found.layers == tuple(MODEL)
    assert np.isnan(found.values[:, :2]).all()
    assert absent == {"embed": "no gradient", "blocks.0.w": "no gradient"}


def test_a_parameter_that_no_optimizer_holds_says_so() -> None:
    coverage = {"missing": [{"name": "head"}]}
    facts = {"model.parameters": parameters(), "optimizer.coverage": coverage}
    _, absent = in_model_order(
        heat("blocks.0.w", "blocks.1.w"), "update.ratio", make_record(facts=facts)
    )
    assert absent == {"embed": "no gradient", "head": "in no optimizer"}


def test_frozen_and_shared_parameters_are_not_missing() -> None:
    facts = {"model.parameters": parameters(frozen=("blocks.0.w",), tied=("lm_head",))}
    found, absent = in_model_order(
        heat("lm_head", "blocks.1.w", "head"), "grad.rms", make_record(facts=facts)
    )
    assert found.layers == ("lm_head", "blocks.1.w", "head")
    assert absent == {}


def test_modules_and_unknown_names_stay_as_they_are() -> None:
    record = make_record(facts={"model.parameters": parameters()})
    assert in_model_order(heat("head", "attn"), "act.rms", record)[0].layers == ("head", "attn")
    assert in_model_order(heat("x", "y"), "grad.rms", record)[0].layers == ("x", "y")
    mixed, _ = in_model_order(heat("parameter 9", *reversed(MODEL)), "grad.rms", record)
    assert mixed.layers == (*MODEL, "parameter 9")


def test_a_strange_fact_is_no_order() -> None:
    for fact in (None, "x", [1, {"name": 3}], {"name": "embed"}):
        record = make_record(facts={"model.parameters": fact})
        assert in_model_order(heat("b", "a"), "grad.rms", record)[0].layers == ("b", "a")
