"""What the optimizer gets is the mean of what the ranks' backward passes left, where the loss is a mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traindoctor.checks.base import Finding
from traindoctor.checks.loss.loss_scale_wrong import loss_scale_wrong
from traindoctor.record import Record, exchange_factors, make_record

STEPS = 8
FALLING = [4.0 - 0.4 * step for step in range(STEPS)]


def ranks(
    factor: float | list[float],
    *,
    count: int = 2,
    own_part: float = 1.0,
    optimizer: str = "SGD",
    clipped: float = 1.0,
    loss: list[float] = FALLING,
    shared_loss: bool = False,
    **facts: Any,
) -> Record:
    """Ranks with gradients of their own, whose mean the exchange multiplies by `factor` (at each step its own)."""
    draw = np.random.default_rng(0)
    own = draw.normal(size=(count, STEPS))
    got = (own.mean(0) * np.broadcast_to(factor, STEPS) * clipped).tolist()
    main = {"line": "a.py:1", "kind": "mse_loss", "calls": 1, "coefficient": own_part, "valid": 8.0}
    found = [
        make_record(
            {
                "grad.along_own": own[rank].tolist(),
                "grad.along": got,
                "grad.crc": [float(step) for step in range(STEPS)],
                "grad.norm": [2.0] * STEPS,
                "grad.norm_clipped": [2.0 * clipped] * STEPS,
                "loss.root": [one if shared_loss else one + 0.01 * rank for one in loss],
            },
            facts={
                "ranks": {"rank": rank, "world": count, **facts},
                "model.parameters": [],
                "optimizer.groups": [{"class": optimizer, "groups": [{"lr": 0.1}]}],
            },
            exams={
                "loss_coefficient": {
                    "main": main,
                    "groups": [main],
                    "backwards": 1,
                    "scale": 1.0,
                    "arrived": None,
                    "arrived_cosine": None,
                },
                "gradient_arrival": {"by_hand": None, "value": None},
            },
        )
        for rank in range(count)
    ]
    found[0].ranks = found
    return found[0]


@pytest.mark.parametrize(
    ("factor", "count", "said"),
    [
        (2.0, 2, "2 times the mean of the 2 ranks' gradients: they are added up"),
        (1 / 8, 2, "0.125 times the mean of the 2 ranks' gradients"),
        (0.25, 4, "0.25 times the mean of the 4 ranks' gradients"),
    ],
)
def test_another_factor_than_one_is_told(factor: float, count: int, said: str) -> None:
    grown = [4.0 + step for step in range(STEPS)]
    found = loss_scale_wrong(ranks(factor, count=count, loss=grown))
    assert isinstance(found, Finding)
    assert said in found.summary
    assert found.status == "confirmed"


@pytest.mark.parametrize(
    "sound",
    [
        ranks(1.0),
        ranks(2.0, own_part=0.5),  # each rank's loss is its part of a sum over all
        ranks(1.0, own_part=1 / 3),  # a weight of the script's own
        ranks(1.0, clipped=0.1),
        ranks([1.0, 0.7, 0.3, 1.0, 0.9, 0.4, 0.8, 0.2]),  # clipped by hand
        ranks(2.0, sharded=4),
        ranks(2.0, shared_loss=True),  # each has a part of one sequence, and of its gradient
    ],
)
def test_sound_exchanges_are_not_accused(sound: Record) -> None:
    assert not isinstance(loss_scale_wrong(sound), Finding)


def test_what_only_may_be_wrong_is_possible() -> None:
    """Adam does not feel a factor; a sum that learns may be meant."""
    for record in (ranks(0.25, optimizer="AdamW"), ranks(2.0, loss=FALLING)):
        found = loss_scale_wrong(record)
        assert isinstance(found, Finding)
        assert found.status == "possible"


def test_factors_are_those_of_common_steps_without_their_clipping() -> None:
    assert np.allclose(exchange_factors(ranks(0.5, count=3)), [0.5] * STEPS)
    assert np.allclose(exchange_factors(ranks(0.5, clipped=0.3)), [0.5] * STEPS)


def test_means_of_unequal_parts_are_told() -> None:
    for few, sick in ((8.0, True), (300.0, False)):
        record = ranks(1.0)
        for rank, count in zip(record.ranks, (few, 400.0)):
            rank._series["target.valid"] = make_record({"n": [count] * STEPS})["n"]
        found = loss_scale_wrong(record)
        assert isinstance(found, Finding) is sick
        if isinstance(found, Finding):
            assert found.status == "likely"
            assert "a target of rank 0 counts 50 times as much as one of rank 1" in found.summary
