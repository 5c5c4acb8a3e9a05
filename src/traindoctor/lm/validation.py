"""What a model is worth: its loss on the validation text, and a short text of its own."""

import math

import torch
from torch import nn

from traindoctor.lm.choices import Choices
from traindoctor.lm.data import Tokens, cut, validation_starts
from traindoctor.lm.generate import NotFinite, Sampling, write_text
from traindoctor.lm.model import Transformer
from traindoctor.lm.tokenizer import Tokenizer


def validation_loss(model: nn.Module, val: Tokens, choices: Choices) -> float:
    """Mean loss over the same blocks of the validation text every time; NaN when there is none."""
    config, world = choices.config, choices.world
    block = min(config.model.block, len(val) - 1)
    if block < 1:
        return math.nan
    starts = validation_starts(len(val), block, config.train.eval_blocks)
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    # All ranks make the same number of passes, as sharded weights are gathered together.
    for first in range(0, len(starts), config.train.batch):
        mine = starts[first : first + config.train.batch][world.rank :: world.size]
        weight = len(mine)
        inputs, targets = cut(val, mine if weight else starts[:1], block)
        with choices.autocast():
            loss = model(inputs.to(world.device), targets.to(world.device))
        total += torch.tensor([loss.item() * weight, weight], dtype=torch.float64)
    model.train()
    total = world.mean(total.float() if world.device.type == "mps" else total)
    return float(total[0] / total[1])


def sample(model: Transformer, tokenizer: Tokenizer, choices: Choices) -> str | None:
    """A short text, by its own random numbers; none from a sharded model (all ranks would have to write)
    or from one that has diverged."""
    settings = choices.config.train
    if not settings.sample_tokens or (settings.shard and choices.world.size > 1):
        return None
    model.eval()
    sampling = Sampling(temperature=settings.sample_temperature, top_p=0.95, seed=settings.seed)
    try:
        with choices.autocast():
            return write_text(
                model, tokenizer, "\n", max_tokens=settings.sample_tokens, sampling=sampling
            )[0]
    except NotFinite:
        return None
    finally:
        model.train()
