"""Errors of libraries inside sentences of ours."""

from __future__ import annotations

import pytest
import torch

from traindoctor.errors import MOST_TOLD, in_a_sentence


def test_a_dispatcher_table_is_left_out() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 2).to_sparse() != 1  # noqa: B015  torch answers with a table of all its backends
    told = in_a_sentence(caught.value)
    assert "aten::ne" in told
    assert "\n" not in told
    assert len(told) < MOST_TOLD + 30


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("too short. Hint: try more."), "ValueError: too short"),
        (KeyError(), "KeyError"),
        (OSError(2, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
        (RuntimeError("x" * 1000), "RuntimeError: " + "x" * (MOST_TOLD - 3) + "..."),
    ],
)
def test_the_first_sentence_is_told(error: Exception, told: str) -> None:
    assert in_a_sentence(error) == told
