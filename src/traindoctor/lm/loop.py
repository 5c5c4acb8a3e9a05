"""The training loop. `train` is the story: prepare, build, resume, then step until something says stop."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from traindoctor.errors import CheckpointError
from traindoctor.lm import checkpoint, distributed, estimate
from traindoctor.lm.callbacks import Callbacks, Outcome, Validation
from traindoctor.lm.choices import Choices
from traindoctor.lm.config import RunConfig
from traindoctor.lm.data import Batches, Corpus, is_prepared, load_corpus, prepare
from traindoctor.lm.distributed import World
from traindoctor.lm.endings import Interruption, memory_advice
from traindoctor.lm.files import write_json, write_text
from traindoctor.lm.heap import keep_freed_memory
from traindoctor.lm.metrics import MetricsFile
from traindoctor.lm.model import Transformer
from traindoctor.lm.optimizer import make_optimizer
from traindoctor.lm.readings import READ_EVERY, Readings
from traindoctor.lm.schedule import count_steps, learning_rate
from traindoctor.lm.tokenizer import Tokenizer, load_tokenizer
from traindoctor.lm.validation import sample, validation_loss


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

    def __post_init__(self) -> None:
        self.interruption = Interruption(self.callbacks.on_interrupt)

    def go(self) -> Outcome:
        """Builds or resumes, then trains to the end."""
        with memory_advice(lambda: self.choices.memory_advice()):
            self.build()
            with self.interruption.watched():
                reason = self._loop()
        outcome = Outcome(
            reason,
            self.state.step,
            self.state.seconds,
            self.state.best_loss,
            self.state.best_step,
            self.readings.last_loss,
        )
        if self.world.main:
            self.callbacks.on_end(outcome)
        return outcome

    def build(self) -> None:
        """Model, optimizer and batches, as they were at the last checkpoint."""
        config, world = self.config, self.world
        self.tokenizer: Tokenizer = load_tokenizer(self.run / "tokenizer.json")
        self.corpus: Corpus = load_corpus(self.run, self.tokenizer.vocab_size)
        self.choices = Choices.of(
            config, world, self.tokenizer.vocab_size, needs_logits=self.callbacks.needs_logits
        )
        if world.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        elif world.device.type == "cpu":
            keep_freed_memory()
        if estimate.is_impossible(self.choices.peak_bytes(), world.device):
            raise self.choices.memory_advice()
        self._build_model()
        self.batches = Batches(
            self.corpus.train,
            block=config.model.block,
            rows=config.train.batch * config.train.accumulation,
            seed=config.train.seed,
            sampling=config.data.sampling,
        )
        self.total_steps = count_steps(config.train, self.batches)
        self.metrics: MetricsFile | None = None
        if world.main:
            self.metrics = MetricsFile(self.run / "metrics.csv", first_step=self.state.step)
            plan = self.choices.plan(
                self.corpus.facts, total_steps=self.total_steps, first_step=self.state.step
            )
            self.callbacks.on_plan(plan)
        self.readings = Readings(
            run=self.run,
            world=world,
            callbacks=self.callbacks,
            metrics=self.metrics,
            tokens_per_step=self.batches.rows * config.model.block,
            total_steps=self.total_steps,
            seconds=self._seconds,
            share=self._share,
        )
        wrapped = self.model if self.sharded else distributed.replicate(self.model, world)
        self.forward = torch.compile(wrapped) if config.train.compile else wrapped
        self.wrapped = wrapped
        self.callbacks.on_ready(wrapped, self.optimizer)
        self.begun = time.monotonic() - self.state.seconds
        self.model.train()

    def _build_model(self) -> None:
        config, world = self.config, self.world
        if found := checkpoint.checkpoints(self.run):
            parameters = config.model.num_parameters(self.tokenizer.vocab_size)
            checkpoint.require_size(found[-1], parameters)
        torch.manual_seed(config.train.seed)
        self.model = Transformer(config.model, self.tokenizer.vocab_size).to(world.device)
        self.model.fused_loss = self.choices.fused_loss
        self.sharded = config.train.shard and world.size > 1
        if self.sharded:
            distributed.shard(self.model)
        self.optimizer = make_optimizer(self.model, config.train)
        self.state = checkpoint.load_last(
            self.run, self.model, self.optimizer, sharded=self.sharded
        )

    def _loop(self) -> str:
        settings, state = self.config.train, self.state
        save_every = settings.save_every or settings.eval_every
        reason = self._why_stop()
        while not reason:
            self.step()
            reason = self._why_stop()
            if reason:
                self.readings.read()
            evaluate = state.step % settings.eval_every == 0
            if evaluate or (reason and reason != "interrupted"):
                self._validate()
                if settings.patience and state.evals_since_best >= settings.patience:
                    reason = reason or "early-stop"
            if state.step % save_every == 0 or state.best_step == state.step or reason:
                state.seconds = self._seconds()
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
                with self.choices.autocast():
                    loss = self.forward(inputs, targets) / settings.accumulation
                loss.backward()
            total += loss.detach()
        norm = self._clip(settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step += 1
        self.readings.add(step=step, lr=lr, loss=total, grad_norm=norm)

    def _batch(self, step: int, part: int) -> tuple[Tensor, Tensor]:
        """This rank's rows of one forward pass; ranks and passes together read each row once."""
        rows = self.choices.rows
        first = part * self.config.train.batch + self.world.rank * rows
        inputs, targets = self.batches.at(step, slice(first, first + rows))
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

    @torch.no_grad()
    def _validate(self) -> None:
        self.readings.read()
        loss = self.validation_loss()
        state = self.state
        best = loss < state.best_loss
        if best:
            state.best_loss, state.best_step, state.evals_since_best = loss, state.step, 0
        else:
            state.evals_since_best += 1
        if self.metrics is None:
            return
        text = sample(self.model, self.tokenizer, self.choices)
        if text is not None:
            write_text(self.run / "samples" / f"step-{state.step:08d}.txt", text + "\n")
        if not math.isnan(loss):
            seconds = round(self._seconds(), 3)
            self.metrics.add([{"step": state.step - 1, "seconds": seconds, "val_loss": loss}])
        self.callbacks.on_validation(Validation(state.step, loss, best, text or ""))

    def validation_loss(self) -> float:
        return validation_loss(self.model, self.corpus.val, self.choices)

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
        seconds = self._seconds()
        return self.world.first(seconds) if self.config.train.minutes else seconds

    def _seconds(self) -> float:
        return time.monotonic() - self.begun
