from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.optimizer.optimizer_holds_stale_params import optimizer_holds_stale_params
from traindoctor.checks.optimizer.params_not_in_optimizer import params_not_in_optimizer
from traindoctor.record import Record, make_record


def record(missing=(), stale=(), looks: int = 10, **more) -> Record:
    def one(name, shape, seen=10) -> dict:
        return {"name": name, "shape": list(shape), "looks_with_gradient": seen}

    coverage = {
        "looks": looks,
        "trainable": 20,
        "missing": [one(*m) for m in missing],
        "stale": [one(None, shape, 0) for shape in stale],
        "num_missing": len(missing),
        "num_stale": len(stale),
        "missing_share": 0.98 if missing else 0.0,
        **more,
    }
    return make_record(facts={"optimizer.coverage": coverage})


def test_a_head_in_no_group_is_named() -> None:
    found = params_not_in_optimizer(
        record(missing=[("head.weight", (90, 64)), ("norm.weight", (64,))])
    )
    assert isinstance(found, Finding)
    assert found.status == "confirmed"
    assert found.where == "head.weight"
    assert "norm.weight" in found.summary


def test_complete_coverage_is_clear_and_no_optimizer_is_not_judged() -> None:
    assert isinstance(params_not_in_optimizer(record()), Clear)
    assert isinstance(params_not_in_optimizer(make_record()), NotJudged)


def test_a_second_optimizer_gets_time_to_appear() -> None:
    assert isinstance(params_not_in_optimizer(record(missing=[("d", (3,), 1)], looks=1)), NotJudged)


def test_stale_and_missing_of_like_shape_are_a_replaced_module() -> None:
    found = optimizer_holds_stale_params(
        record(missing=[("transformer.wte.weight", (101, 64))], stale=[(99, 64)])
    )
    assert isinstance(found, Finding)
    assert found.where == "transformer.wte.weight"
    assert "(99, 64)" in found.summary


def test_unused_tensors_beside_a_complete_set_are_harmless() -> None:
    assert isinstance(optimizer_holds_stale_params(record(stale=[(99, 64)])), Clear)


def test_missing_without_stale_is_not_a_replacement() -> None:
    assert isinstance(optimizer_holds_stale_params(record(missing=[("head", (90, 64))])), Clear)
    unlike = record(missing=[("head", (90, 64))], stale=[(7,)])
    assert isinstance(optimizer_holds_stale_params(unlike), NotJudged)
