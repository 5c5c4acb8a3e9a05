"""The same model in other dtypes, and in TF32."""

from __future__ import annotations

import torch
from parts import Patient, autocast, mean_loss, patient


def float64() -> Patient:
    def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["tokens"])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    return patient(dtype=torch.float64, loss=loss)


def float32() -> Patient:
    return patient()


def tf32() -> Patient:
    torch.backends.cuda.matmul.allow_tf32 = True
    return patient()


def bf16_autocast() -> Patient:
    return patient(loss=autocast(mean_loss))


def bf16_weights() -> Patient:
    return patient(dtype=torch.bfloat16)


def compiled_autocast() -> Patient:
    model, data, loss, optimizer = bf16_autocast()
    return torch.compile(model), data, loss, optimizer
