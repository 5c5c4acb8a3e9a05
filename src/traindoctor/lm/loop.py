"""The training loop. `train` is the story: prepare, build, resume, then step until something says stop."""

from __future__ import annotations

import contextlib
import math
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.errors import CheckpointError, ConfigError, TraindoctorError
from traindoctor.lm import checkpoint, distributed, estimate
from traindoctor.lm.callbacks import Callbacks, Outcome, Plan, Progress, Validation
from traindoctor.lm.config import RunConfig
from traindoctor.lm.data import (
    Batches,
    Corpus,
    cut,
    is_prepared,
    load_corpus,
    prepare,
    validation_starts,
)
from traindoctor.lm.distributed import World
from traindoctor.lm.endings import Interruption, memory_advice
from traindoctor.lm.files import write_json, write_text
from traindoctor.lm.generate import Sampling
from traindoctor.lm.generate import write_text as write_sample
from traindoctor.lm.heap import keep_freed_memory
from traindoctor.lm.loss import FUSED_CLASSES
from traindoctor.lm.metrics import MetricsFile
from traindoctor.lm.model import Transformer, decay_groups
from traindoctor.lm.schedule import learning_rate
from traindoctor.lm.tokenizer import Tokenizer, load_tokenizer

# Losses stay on the device and are read together: waiting for a GPU at every step costs about 2 %.
READ_EVERY = 10


def train(run: Path, config: RunConfig, callbacks: Callbacks | None = None) -> Outcome:
    """Trains in the folder `run`, from its last checkpoint if it has one, and leaves all of it there."""
    callbacks = callbacks or Callbacks()
    with distributed.joined(config.train.device) as world:
        if world.main:
            if not is_prepared(run):
                if checkpoint.checkpoints(run):
                    # Text that has changed since would make other tokens than the model has learned.
                    raise CheckpointError(
                        f"{run} has checkpoints, but its tokenizer.json or data/meta.json is gone: "
                        "put it back from a copy, or start a new run with --out"
                    )
                prepare(
                    config.data,
                    run,
                    block=config.model.block,
                    seed=config.train.seed,
                    progress=callbacks.on_preparing,
                )
            # The settings make a folder a run: a text that cannot be trained on leaves none behind.
            write_json(run / "config.json", config.to_dict())
        world.barrier()
        return Training(run, config, world, callbacks).go()


@dataclass
class Training:
    """One run in one process. `go` does all of it; `build` and `step` are its parts."""

    run: Path
    config: RunConfig
    world: World
    callbacks: Callbacks
    unread: list[dict[str, Any]] = field(default_factory=list)
    last_loss: float = math.nan

    def __post_init__(self) -> None:
        self.interruption = Interruption(self.callbacks.on_interrupt)

    def go(self) -> Outcome:
        """Builds or resumes, then trains to the end."""
        with memory_advice(self._memory_advice):
            self.build()
            with self.interruption.watched():
                reason = self._loop()
        outcome = Outcome(
            reason,
            self.state.step,
            self.state.seconds,
            self.state.best_loss,
            self.state.best_step,
            self.last_loss,
        )
        if self.world.main:
            self.callbacks.on_end(outcome)
        return outcome

    def build(self) -> None:
        """Model, optimizer and batches, as they were at the last checkpoint."""
        config, world = self.config, self.world
        self.tokenizer: Tokenizer = load_tokenizer(self.run / "tokenizer.json")
        self.corpus: Corpus = load_corpus(self.run)
        self.rows = world.rows(config.train.batch)
        self.bf16 = self._use_bf16()
        if world.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        elif world.device.type == "cpu":
            keep_freed_memory()
        if estimate.is_impossible(self._peak_bytes(), world.device):
            raise self._memory_advice()
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model, self.tokenizer.vocab_size).to(world.device)
        self.model.fused_loss = self._use_fused_loss()
        self.sharded = config.train.shard and world.size > 1
        if self.sharded:
            distributed.shard(self.model)
        self.optimizer = make_optimizer(self.model, config)
        self.state = checkpoint.load_last(
            self.run, self.model, self.optimizer, sharded=self.sharded
        )
        self.batches = Batches(
            self.corpus.train,
            block=config.model.block,
            rows=config.train.batch * config.train.accumulation,
            seed=config.train.seed,
            sampling=config.data.sampling,
        )
        self.total_steps = count_steps(config, self.batches)
        if world.main:
            self.metrics = MetricsFile(self.run / "metrics.csv", first_step=self.state.step)
            self.callbacks.on_plan(self._plan())
        wrapped = self.model if self.sharded else distributed.replicate(self.model, world)
        self.forward = torch.compile(wrapped) if config.train.compile else wrapped
        self.wrapped = wrapped
        self.callbacks.on_ready(wrapped, self.optimizer)
        self.begun = time.monotonic() - self.state.seconds
        self.model.train()

    def _loop(self) -> str:
        settings, state = self.config.train, self.state
        save_every = settings.save_every or settings.eval_every
        reason = self._why_stop()
        while not reason:
            self.step()
            reason = self._why_stop()
            if reason:
                self.read_losses()
            evaluate = state.step % settings.eval_every == 0
            if evaluate or (reason and reason != "interrupted"):
                self._validate()
                if settings.patience and state.evals_since_best >= settings.patience:
                    reason = reason or "early-stop"
            if state.step % save_every == 0 or state.best_step == state.step or reason:
                state.seconds = time.monotonic() - self.begun
                checkpoint.save(
                    self.run,
                    state,
                    self.model,
                    self.optimizer,
                    keep=settings.keep,
                    world=self.world,
                    sharded=self.sharded,
                )
        return reason

    def step(self) -> None:
        """One optimizer step: forward and backward passes, clipping, update."""
        settings, step = self.config.train, self.state.step
        lr = learning_rate(settings, step, self._share(self._elapsed()), self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.config.model.dropout:
            # Dropout, like the batch, is a function of seed, step and rank: nothing to save, nothing to lose.
            torch.manual_seed(
                ((settings.seed << 40) + (step << 12) + self.world.rank) & (2**63 - 1)
            )
        total = torch.zeros((), device=self.world.device)
        for part in range(settings.accumulation):
            inputs, targets = self._batch(step, part)
            last = part == settings.accumulation - 1
            with distributed.without_sync(self.wrapped, last):
                with self._autocast():
                    loss = self.forward(inputs, targets) / settings.accumulation
                loss.backward()
            total += loss.detach()
        norm = self._clip(settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.unread.append({"step": step, "lr": lr, "loss": total, "grad_norm": norm})
        self.state.step += 1
        if len(self.unread) == READ_EVERY:
            self.read_losses()

    def _batch(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """This rank's rows of one forward pass; ranks and passes together read each row once."""
        first = part * self.config.train.batch + self.world.rank * self.rows
        inputs, targets = self.batches.at(step, slice(first, first + self.rows))
        if self.world.device.type != "cuda":
            return inputs.to(self.world.device), targets.to(self.world.device)
        pinned = inputs.pin_memory(), targets.pin_memory()
        return (
            pinned[0].to(self.world.device, non_blocking=True),
            pinned[1].to(self.world.device, non_blocking=True),
        )

    def _clip(self, limit: float) -> Tensor:
        parameters = list(self.model.parameters())
        if limit:
            norm = torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
        else:
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(grads, foreach=True)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def read_losses(self) -> None:
        """Brings the losses of the last steps to the host, all at once, and tells them."""
        if not self.unread:
            return
        losses = self.world.mean(torch.stack([row["loss"] for row in self.unread])).tolist()
        norms = torch.stack([row["grad_norm"] for row in self.unread]).tolist()
        seconds = time.monotonic() - self.begun
        per_step = self.batches.rows * self.config.model.block
        rows = [
            {
                **row,
                "loss": loss,
                "grad_norm": norm,
                "seconds": round(seconds, 3),
                "tokens": (row["step"] + 1) * per_step,
            }
            for row, loss, norm in zip(self.unread, losses, norms)
        ]
        self.unread.clear()
        self.last_loss = losses[-1]
        if self.world.main:
            self.metrics.add(rows)
            before, self._last_read = getattr(self, "_last_read", None), (rows[-1]["step"], seconds)
            speed = math.nan
            if before and seconds > before[1]:
                speed = (rows[-1]["step"] - before[0]) * per_step / (seconds - before[1])
            self.callbacks.on_progress(
                Progress(
                    step=rows[-1]["step"] + 1,
                    total_steps=self.total_steps,
                    loss=losses[-1],
                    lr=rows[-1]["lr"],
                    grad_norm=norms[-1],
                    seconds=seconds,
                    tokens_per_second=speed,
                    # By this rank's clock: the others are not here to be asked.
                    share=self._share(seconds),
                )
            )
        bad = [row for row in rows if not math.isfinite(row["loss"])]
        if bad:
            raise TraindoctorError(
                f"the loss became {bad[0]['loss']} at step {bad[0]['step']} (gradient norm before it "
                f"{norms[max(rows.index(bad[0]) - 1, 0)]:.3g}): start anew with a lower --lr, or see why with "
                f"traindoctor diagnose {self.run}; checkpoints before it are whole",
                slug="not-finite",
            )

    @torch.no_grad()
    def _validate(self) -> None:
        self.read_losses()
        loss = self.validation_loss()
        state = self.state
        best = loss < state.best_loss
        if best:
            state.best_loss, state.best_step, state.evals_since_best = loss, state.step, 0
        else:
            state.evals_since_best += 1
        if not self.world.main:
            return
        sample = self._sample()
        if not math.isnan(loss):
            seconds = round(time.monotonic() - self.begun, 3)
            self.metrics.add([{"step": state.step - 1, "seconds": seconds, "val_loss": loss}])
        self.callbacks.on_validation(Validation(state.step, loss, best, sample))

    def validation_loss(self) -> float:
        """Mean loss over the same blocks of the validation text every time; NaN when there is none."""
        val, settings = self.corpus.val, self.config.train
        block = min(self.config.model.block, len(val) - 1)
        if block < 1:
            return math.nan
        starts = validation_starts(len(val), block, settings.eval_blocks)
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64)
        # All ranks make the same number of passes, as sharded weights are gathered together.
        for first in range(0, len(starts), settings.batch):
            mine = starts[first : first + settings.batch][self.world.rank :: self.world.size]
            weight = len(mine)
            inputs, targets = cut(val, mine if weight else starts[:1], block)
            with self._autocast():
                loss = self.model(inputs.to(self.world.device), targets.to(self.world.device))
            total += torch.tensor([loss.item() * weight, weight], dtype=torch.float64)
        self.model.train()
        total = self.world.mean(total.float() if self.world.device.type == "mps" else total)
        return float(total[0] / total[1])

    def _sample(self) -> str:
        """A short text, by its own random numbers; none from a sharded model (all ranks would have to write)."""
        settings = self.config.train
        if not settings.sample_tokens or (settings.shard and self.world.size > 1):
            return ""
        self.model.eval()
        with self._autocast():
            text = write_sample(
                self.model,
                self.tokenizer,
                "\n",
                max_tokens=settings.sample_tokens,
                sampling=Sampling(temperature=0.8, top_p=0.95, seed=settings.seed),
            )[0]
        self.model.train()
        write_text(self.run / "samples" / f"step-{self.state.step:08d}.txt", text + "\n")
        return text

    def _why_stop(self) -> str:
        settings = self.config.train
        if self.total_steps and self.state.step >= self.total_steps:
            return "finished"
        if settings.minutes and self._elapsed() >= settings.minutes * 60:
            return "finished"
        # Several ranks ask each other only now and then: it costs a message.
        ask = self.world.size == 1 or self.state.step % READ_EVERY == 0
        if ask and self.world.any(self.interruption.asked):
            return "interrupted"
        return ""

    def _share(self, seconds: float) -> float:
        """How much of the run is over after so many seconds, from 0 to 1."""
        if self.config.train.minutes:
            return min(seconds / (self.config.train.minutes * 60), 1.0)
        return min(self.state.step / self.total_steps, 1.0) if self.total_steps else 0.0

    def _elapsed(self) -> float:
        """Seconds of training; where the clock decides, rank 0's, and all ranks have to ask together."""
        seconds = time.monotonic() - self.begun
        return self.world.first(seconds) if self.config.train.minutes else seconds

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self.bf16:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def _use_bf16(self) -> bool:
        wanted = self.config.train.precision
        if wanted == "auto":
            return estimate.bf16_pays(self.world.device, self.config.model.width)
        return wanted == "bf16"

    def _use_fused_loss(self) -> bool:
        wanted = self.config.train.fused_loss
        if wanted != "auto":
            return wanted == "on"
        plain = self.callbacks.needs_logits or self.config.train.compile
        return not plain and self.tokenizer.vocab_size >= FUSED_CLASSES

    def _plan(self) -> Plan:
        config, facts = self.config, self.corpus.facts
        parameters = config.model.num_parameters(self.tokenizer.vocab_size)
        warnings = [estimate.size_warning(parameters, facts["train"])]
        if self.bf16 and self.world.device.type == "cpu" and not estimate.cpu_has_bf16_units():
            warnings.append(
                "this CPU has no bf16 units: bf16 is emulated and slow, float32 is better"
            )
        if facts["val"] < 2:
            warnings.append("no text is left for validation: the best checkpoint cannot be told")
        return Plan(
            parameters=parameters,
            vocab_size=self.tokenizer.vocab_size,
            train_tokens=facts["train"],
            val_tokens=facts["val"],
            unknown_share=facts["unknown_share"],
            total_steps=self.total_steps,
            expected_first_loss=math.log(self.tokenizer.vocab_size),
            peak_bytes=self._peak_bytes(),
            device=str(self.world.device)
            + (f" x {self.world.size}" if self.world.size > 1 else ""),
            precision="bf16 autocast" if self.bf16 else "float32",
            first_step=self.state.step,
            warnings=tuple(w for w in warnings if w),
        )

    def _peak_bytes(self) -> int:
        return estimate.peak_bytes(
            self.config.model,
            self.tokenizer.vocab_size,
            self.rows,
            bf16=self.bf16,
            shards=self.world.size if self.config.train.shard else 1,
        )

    def _memory_advice(self) -> TraindoctorError:
        return estimate.out_of_memory(
            self.config.model,
            self.tokenizer.vocab_size,
            self.rows,
            self.config.train.accumulation,
            bf16=self.bf16,
            fused=self._use_fused_loss(),
        )


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW in one fused kernel where the device has one; decay on matrices only."""
    settings = config.train
    device = next(model.parameters()).device.type
    return torch.optim.AdamW(
        decay_groups(model, settings.weight_decay),
        lr=settings.lr,
        betas=(settings.beta1, settings.beta2),
        fused=device in ("cpu", "cuda", "mps"),
    )


def count_steps(config: RunConfig, batches: Batches) -> int:
    """Optimizer steps of the run; 0 when the clock decides."""
    settings = config.train
    if settings.minutes:
        return 0
    if settings.epochs:
        steps = math.ceil(settings.epochs * batches.num_blocks / batches.rows)
        if steps < 1:
            raise ConfigError(f"--epochs {settings.epochs} is less than one step of this text")
        return steps
    return settings.steps
