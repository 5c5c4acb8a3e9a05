"""The learning rate: linear warm-up, then a cosine down to a floor."""

from __future__ import annotations

import math

from traindoctor.lm.config import TrainConfig

# Warm-up never takes more than this share of the run, whatever its length in steps says.
MOST_WARMUP = 0.1


def learning_rate(config: TrainConfig, step: int, progress: float, total_steps: int) -> float:
    """The rate of step `step` (from 0); `progress` is the share of the run that is over, from 0 to 1."""
    warmup = config.warmup
    if total_steps:
        warmup = min(warmup, int(total_steps * MOST_WARMUP))
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    begin = warmup / total_steps if total_steps else 0.0
    along = min(max((progress - begin) / (1 - begin), 0.0), 1.0)
    floor = config.lr * config.lr_floor
    return floor + 0.5 * (config.lr - floor) * (1 + math.cos(math.pi * along))
