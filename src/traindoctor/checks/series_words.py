"""What a recorded series is called in front of a user."""

from __future__ import annotations

WORDS: dict[str, str] = {
    "loss.root": "the training loss",
    "loss.token": "the loss per token",
    "loss.eval": "a validation loss",
    "optim.lr": "the learning rate",
    "optim.state_reset": "the optimizer's state",
    "grad.norm": "the gradient norm",
    "grad.rms": "the gradients of the layers",
    "clip.limit": "gradient clipping",
    "batch.rowset": "a batch",
    "batch.rows": "a batch",
    "time.step": "the time of a step",
    "time.data": "the time spent waiting for data",
    "time.loader": "the time inside a DataLoader",
    "graphs.old": "the age of the autograd graph",
    "forward.calls": "a forward pass of a module",
    "update.lost": "the share of lost updates",
}


def said(series: str) -> str:
    return WORDS[series]
