"""Models that are no transformers: a recurrent and a convolutional one, in two ways each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from parts import DEVICE, STEPS, VOCAB, WIDTH, Patient, initialise, patient
from torch import Tensor, nn

IMAGES, SIDE, CLASSES, CHANNELS = 8, 8, 10, 6


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)
        initialise(self)

    def over_time(self, x: Tensor) -> Tensor:
        made, _ = self.lstm(x)
        return made

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.over_time(self.embedding(tokens)))


class Unrolled(Recurrent):
    """The gates by hand."""

    def over_time(self, x: Tensor) -> Tensor:
        lstm = self.lstm
        state = cell = x.new_zeros(len(x), WIDTH)
        made = []
        for given in x.unbind(1):
            inner = given @ lstm.weight_ih_l0.T + lstm.bias_ih_l0
            gates = inner + state @ lstm.weight_hh_l0.T + lstm.bias_hh_l0
            enter, forget, new, leave = gates.chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            state = leave.sigmoid() * cell.tanh()
            made.append(state)
        return torch.stack(made, dim=1)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, stride=2)
        self.head = nn.Linear(CHANNELS * (SIDE // 2) ** 2, CLASSES)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return self.head(self.second(x).relu().flatten(1))


class Unfold(nn.Conv2d):
    """A convolution as one matrix product."""

    def forward(self, x: Tensor) -> Tensor:
        columns = F.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)
        made = self.weight.flatten(1) @ columns + self.bias[:, None]
        side = x.shape[-1] // self.stride[0]
        return made.unflatten(-1, (side, side))


class Unfolded(Convolution):
    def __init__(self) -> None:
        super().__init__()
        self.first = Unfold(3, CHANNELS, 3, padding=1)
        self.second = Unfold(CHANNELS, CHANNELS, 3, padding=1, stride=2)


def images() -> list[dict[str, Tensor]]:
    return [
        {
            "pixels": torch.randn(IMAGES, 3, SIDE, SIDE, device=DEVICE),
            "labels": torch.randint(CLASSES, (IMAGES,), device=DEVICE),
        }
        for _ in range(STEPS)
    ]


def of_images(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch["pixels"]), batch["labels"])


def lstm() -> Patient:
    return patient(Recurrent())


def unrolled() -> Patient:
    return patient(Unrolled())


def convolution() -> Patient:
    return patient(Convolution(), data=images(), loss=of_images)


def unfolded() -> Patient:
    return patient(Unfolded(), data=images(), loss=of_images)


def channels_last() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        pixels = batch["pixels"].to(memory_format=torch.channels_last)
        return F.cross_entropy(model(pixels), batch["labels"])

    model = Convolution().to(memory_format=torch.channels_last)
    return patient(model, data=images(), loss=loss)
