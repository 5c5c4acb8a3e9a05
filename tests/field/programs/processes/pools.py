"""A multiprocessing pool and a process pool executor beside training: forked helpers that use torch a little."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from toy import DEVICE, finish, fit, seed, tiny_model


def score(value: int) -> float:
    torch.manual_seed(value)
    row = torch.randn(1, 5)
    return F.cross_entropy(row, torch.tensor([value % 5])).item()


if __name__ == "__main__":
    seed()
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fit(model, optimizer, steps=5)
    # A forked child may use the CPU after its parent used CUDA; torch sees to that.
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(score, range(6)))
        fit(model, optimizer, steps=5)
        print(pool.map(score, range(6, 10)))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        print(list(executor.map(score, range(4))), DEVICE.type)
    finish(model, optimizer)
