"""Answers padded to one length: padding where the model itself masks that token, a part of the task where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.exams.padding import padding
from traindoctor.replay.patient import Patient

ROWS, READ, ASKED, WIDTH, TOKENS, PAD = 8, 9, 12, 8, 20, 0


class Answering(nn.Module):
    """One table for the text that is read and the answer; what was read enters as a mean over its places."""

    def __init__(self, *, masks: bool = True, declares: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH, padding_idx=PAD if declares else None)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.masks = masks

    def forward(self, read: Tensor, answer: Tensor) -> Tensor:
        keep = (read != PAD).float() if self.masks else torch.ones(read.shape)
        mean = (self.table(read) * keep[:, :, None]).sum(1) / keep.sum(1)[:, None]
        before = torch.zeros_like(answer)
        before[:, 1:] = answer[:, :-1]
        return self.head(self.table(before) + mean[:, None])


def texts(step: int, *, vary: bool = True) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    read = torch.randint(1, TOKENS, (ROWS, READ), generator=generator)
    for row in range(ROWS):
        read[row, READ - (row % 4 if vary else 2) :] = PAD
    answer = torch.randint(1, TOKENS, (ROWS, ASKED), generator=generator)
    answer[:, 4:] = PAD
    return read, answer


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(*batch).flatten(0, 1), batch[1].flatten())


@pytest.mark.parametrize(
    ("settings", "vary", "known"),
    [
        ({}, True, True),
        ({"masks": False}, True, False),
        ({}, False, False),
        ({"masks": False, "declares": True}, False, True),
    ],
)
def test_whether_the_model_treats_a_token_as_padding(
    examine: Callable[..., Patient], settings: dict[str, bool], vary: bool, known: bool
) -> None:
    patient = examine(Answering(**settings), loss, lambda step: texts(step, vary=vary))
    (pair,) = padding(patient).values["pairs"]
    assert (pair["token"], pair["lengths_vary"]) == (PAD, False)
    assert pair["counted"] == pytest.approx(8 / 12)
    assert pair["known_as_padding"] is known
