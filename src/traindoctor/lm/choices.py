"""What follows from the settings before the first step: precision, loss, memory, and the plan that is told."""

from __future__ import annotations

import contextlib
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from traindoctor.errors import TraindoctorError
from traindoctor.lm import estimate
from traindoctor.lm.callbacks import Plan
from traindoctor.lm.config import RunConfig
from traindoctor.lm.distributed import World
from traindoctor.lm.loss import FUSED_CLASSES


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How this run computes on this machine."""

    config: RunConfig
    world: World
    vocab_size: int
    rows: int
    """rows of a batch for this rank"""
    bf16: bool
    fused_loss: bool

    @classmethod
    def of(cls, config: RunConfig, world: World, vocab_size: int, *, needs_logits: bool) -> Choices:
        """`needs_logits`: somebody looks at what goes into the loss."""
        bf16 = _use_bf16(config, world.device)
        # torch.compile fuses the plain loss by itself; the kernel for bfloat16 is faster than what it makes.
        compiled = config.train.compile and not (bf16 and world.device.type == "cuda")
        return cls(
            config=config,
            world=world,
            vocab_size=vocab_size,
            rows=world.rows(config.train.batch),
            bf16=bf16,
            fused_loss=_use_fused_loss(config, vocab_size, plain=needs_logits or compiled),
        )

    def autocast(self) -> AbstractContextManager[Any]:
        if not self.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def peak_bytes(self) -> int:
        return estimate.peak_bytes(
            self.config.model,
            self.vocab_size,
            self.rows,
            bf16=self.bf16,
            shards=self.world.size if self.config.train.shard else 1,
        )

    def memory_advice(self) -> TraindoctorError:
        """What to say when the memory does not suffice."""
        return estimate.out_of_memory(
            self.config.model,
            self.vocab_size,
            self.rows,
            self.config.train.accumulation,
            bf16=self.bf16,
            fused=self.fused_loss,
        )

    def plan(self, facts: dict[str, Any], *, total_steps: int, first_step: int) -> Plan:
        """`facts`: what is known of the tokens."""
        world = self.world
        parameters = self.config.model.num_parameters(self.vocab_size)
        return Plan(
            parameters=parameters,
            vocab_size=self.vocab_size,
            train_tokens=facts["train"],
            val_tokens=facts["val"],
            unknown_share=facts["unknown_share"],
            total_steps=total_steps,
            expected_first_loss=math.log(self.vocab_size),
            peak_bytes=self.peak_bytes(),
            device=str(world.device) + (f" x {world.size}" if world.size > 1 else ""),
            precision="bf16 autocast" if self.bf16 else "float32",
            first_step=first_step,
            warnings=tuple(w for w in self._warnings(parameters, facts) if w),
        )

    def _warnings(self, parameters: int, facts: dict[str, Any]) -> list[str | None]:
        warnings: list[str | None] = [estimate.size_warning(parameters, facts["train"])]
        if self.bf16 and self.world.device.type == "cpu" and not estimate.cpu_has_bf16_units():
            warnings.append(
                "this CPU has no bf16 units: bf16 is emulated and slow, float32 is better"
            )
        if facts["val"] < 2:
            warnings.append("no text is left for validation: the best checkpoint cannot be told")
        return warnings


def _use_bf16(config: RunConfig, device: torch.device) -> bool:
    wanted = config.train.precision
    if wanted == "auto":
        return estimate.bf16_pays(device, config.model.width)
    return wanted == "bf16"


def _use_fused_loss(config: RunConfig, vocab_size: int, *, plain: bool) -> bool:
    wanted = config.train.fused_loss
    if wanted != "auto":
        return wanted == "on"
    return not plain and vocab_size >= FUSED_CLASSES
