"""AdamW as the trainer wants it."""

import torch
from torch import nn

from traindoctor.lm.config import TrainConfig
from traindoctor.lm.model import decay_groups


def make_optimizer(model: nn.Module, settings: TrainConfig) -> torch.optim.AdamW:
    """AdamW in one fused kernel where the device has one; decay on matrices only."""
    device = next(model.parameters()).device.type
    return torch.optim.AdamW(
        decay_groups(model, settings.weight_decay),
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        fused=device in ("cpu", "cuda", "mps"),
    )
