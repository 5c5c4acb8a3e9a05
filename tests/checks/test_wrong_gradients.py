"""A wrong gradient in words: how much, how, and what to change."""

from __future__ import annotations

import pytest

from traindoctor.checks.wrong_gradients import remedy, said
from traindoctor.record import make_record

RECORD = make_record({"batch.rows": [16.0] * 5, "batch.tokens": [384.0] * 5})


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (
            "constant factor 384",
            "the gradient is 384 times too large (384 = batch x length)",
        ),
        ("constant factor 0.0625", "the gradient is 16 times too small (16 = batch size)"),
        ("constant factor 1.7", "the gradient is 1.7 times too large"),
        ("constant factor -0.3", "the gradient is -0.3 times what it should be"),
        ("constant factor 36 (the number of entries)", "the gradient is 36 times too large"),
        ("opposite sign", "the gradient has the opposite sign"),
        ("transposed", "the gradient is transposed"),
        (
            "zero from index 8 on along axis 1 of 32",
            "the gradient is zero from index 8 on along axis 1 of 32",
        ),
    ],
)
def test_the_pattern_is_a_sentence(pattern: str, sentence: str) -> None:
    assert said(pattern, RECORD) == sentence


def test_a_parameter_is_named_once() -> None:
    assert said("opposite sign", RECORD, of="head.weight") == (
        "the gradient of head.weight has the opposite sign"
    )


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("constant factor 384", "Divide the gradient in F.backward by 384: the division of a mean"),
        (
            "constant factor 0.0625",
            "Multiply the gradient in F.backward by 16: it is divided twice",
        ),
        ("constant factor 1.7", "Divide the gradient in F.backward by 1.7."),
        ("opposite sign", "Flip the sign in F.backward."),
        ("zero from index 8 on along axis 1 of 32", "a block, tile or mask is left out"),
        ("constant factor 0", "Look at what F.backward does there"),
    ],
)
def test_the_change_is_that_of_the_pattern(pattern: str, change: str) -> None:
    text = remedy(pattern, "F.backward", RECORD)
    assert text is not None
    assert change in text
    assert "gradcheck" in text
