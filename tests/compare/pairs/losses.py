"""The loss in several ways: torch's, ours, fused with the output layer, in parts, from other containers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from parts import STEPS, Patient, batches, mean_loss, patient
from torch import Tensor

import traindoctor

PARTS = 2


def plain() -> Patient:
    return patient()


def kernel() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(batch["tokens"])
        return traindoctor.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    return patient(loss=loss)


def fused() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        hidden = model.hidden(batch["tokens"]).flatten(0, 1)
        return traindoctor.linear_cross_entropy(
            hidden, model.head.weight, batch["targets"].flatten()
        )

    return patient(loss=loss)


def by_hand() -> Patient:
    """The mean of log sum exp less the target's score."""

    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(batch["tokens"])
        wanted = logits.gather(-1, batch["targets"][..., None]).squeeze(-1)
        return (logits.exp().sum(-1).log() - wanted).mean()

    return patient(loss=loss)


def accumulated() -> Patient:
    """Micro-batches inside the loss; each divided by their number."""

    def loss(model: Any, batch: Any) -> Tensor:
        parts = zip(batch["tokens"].chunk(PARTS), batch["targets"].chunk(PARTS))
        return sum(mean_loss(model, {"tokens": x, "targets": y}) / PARTS for x, y in parts)

    return patient(loss=loss)


def pairs() -> Patient:
    """Batches as (tokens, targets), one-hot targets."""

    def loss(model: Any, batch: Any) -> Tensor:
        tokens, targets = batch
        share = model(tokens).log_softmax(-1)
        wanted = F.one_hot(targets, share.shape[-1]).to(share.dtype)
        return -(wanted * share).sum() / targets.numel()

    data = [(batch["tokens"], batch["targets"]) for batch in batches()]
    assert len(data) == STEPS
    return patient(loss=loss, data=data)


def smoothed() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(batch["tokens"]).flatten(0, 1)
        return F.cross_entropy(logits, batch["targets"].flatten(), label_smoothing=0.1)

    return patient(loss=loss)


def smoothed_by_hand() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        share = model(batch["tokens"]).log_softmax(-1)
        wanted = share.gather(-1, batch["targets"][..., None])
        return -(0.9 * wanted.mean() + 0.1 * torch.mean(share))

    return patient(loss=loss)


def bf16() -> Patient:
    return patient(dtype=torch.bfloat16)


def bf16_throughout() -> Patient:
    """The scores are not widened before the loss."""

    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(batch["tokens"])
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    return patient(loss=loss, dtype=torch.bfloat16)
