"""Answers padded to one length: padding where the model itself masks that token, a part of the task where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.exams.padding import padding
from traindoctor.experiment.patient import Patient

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


class Tagging(nn.Module):
    """One tag for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, read: Tensor) -> Tensor:
        return self.head(self.table(read))


@pytest.mark.parametrize(
    ("case", "share"),
    [("counts", True), ("ignored", False), ("blanks to fill", False), ("stands inside too", False)],
)
def test_tags_of_padding_are_found_by_the_rows_that_go_in(
    examine: Callable[..., Patient], case: str, share: bool
) -> None:
    """Padding has the tag 0, which other tokens have too."""

    def batches(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        read = torch.randint(1, TOKENS, (ROWS, READ), generator=generator)
        tags = torch.randint(4, (ROWS, READ), generator=generator)
        for row in range(ROWS):
            read[row, READ - row % 6 :] = PAD
        if case == "stands inside too":
            read[:, 1] = PAD
        if case in ("counts", "stands inside too"):
            tags[read == PAD] = 0
        if case == "ignored":
            tags[read == PAD] = -100
        return read, tags

    def tagged(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    (pair,) = padding(examine(Tagging(), tagged, batches)).values["pairs"]
    assert (pair["counted"] > 0.15) is share
    if share:
        assert pair["counted"] == pytest.approx(sum(r % 6 for r in range(ROWS)) / (ROWS * READ))


@pytest.mark.parametrize("task", ["sums", "tags", "actions"])
def test_a_frequent_class_is_no_padding(examine: Callable[..., Patient], task: str) -> None:
    """Most rows end in it, by different lengths; but what goes in is no padding."""

    def batches(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        if (
            task == "sums"
        ):  # two digits and two digits, then their sum from its last digit on; 1 ends many rows
            generator = torch.Generator().manual_seed(55)
            a, b = torch.randint(0, 100, (2, ROWS), generator=generator).tolist()
            written = [f"{x:02}{y:02}" + f"{x + y:03}"[::-1] for x, y in zip(a, b)]
            digits = [[int(sign) for sign in row] for row in written]
            rows = torch.tensor(digits)
            asked = rows[:, 1:].clone()
            asked[:, :3] = -100
            return rows[:, :-1], asked
        read = torch.randint(0, TOKENS, (ROWS, READ), generator=generator)
        tags = torch.where(read > TOKENS - 4, 1 + read % 3, 0)
        return read, tags if task == "tags" else tags.roll(1, 1)

    def asked(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    model = Tagging()
    if task == "sums":
        model.head = nn.Linear(WIDTH, TOKENS)
    (pair,) = padding(examine(model, asked, batches)).values["pairs"]
    assert pair["counted"] == 0.0


def test_a_class_with_the_number_of_the_padding_token_is_none(
    examine: Callable[..., Patient],
) -> None:
    """Tags of names among others: most sentences end in tag 0, and token 0 is padding, whose targets are ignored."""

    def batches(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        read = torch.randint(1, TOKENS, (ROWS, READ), generator=generator)
        tags = torch.zeros_like(read)
        for row in range(ROWS):
            tags[row, : READ - 6 - row % 4] = 1 + torch.arange(READ - 6 - row % 4) % 3
            padded = READ - (row % 2)
            read[row, padded:], tags[row, padded:] = PAD, -100
        return read, tags

    def tagged(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    (pair,) = padding(examine(Tagging(), tagged, batches)).values["pairs"]
    assert pair["counted"] < 0.15


@pytest.mark.parametrize("side", ["right", "left", "right, rows begin with it"])
def test_padding_of_texts_is_found_on_either_side(
    examine: Callable[..., Patient], side: str
) -> None:
    def batches(step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(1, TOKENS, (ROWS, READ), generator=generator)
        for row in range(ROWS):
            if side == "left":
                ids[row, : row % 6] = PAD
            else:
                ids[row, READ - row % 6 :] = PAD
        if "begin" in side:
            ids[:, 0] = PAD
        return ids

    def next_token(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    model = Tagging()
    model.head = nn.Linear(WIDTH, TOKENS)
    (pair,) = padding(examine(model, next_token, batches)).values["pairs"]
    assert pair["counted"] > 0.15
    assert pair["lengths_vary"]
