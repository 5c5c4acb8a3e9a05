"""How long a run is, and its learning rate: linear warm-up, then a cosine down to a floor."""

import math

from traindoctor.errors import ConfigError
from traindoctor.lm.config import TrainConfig
from traindoctor.lm.data import Batches

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


def count_steps(settings: TrainConfig, batches: Batches) -> int:
    """Optimizer steps of the run; 0 when the clock decides."""
    if settings.minutes:
        return 0
    if settings.epochs:
        steps = math.ceil(settings.epochs * batches.num_blocks / batches.rows)
        if steps < 1:
            raise ConfigError(f"--epochs {settings.epochs} is less than one step of this text")
        return steps
    return settings.steps
