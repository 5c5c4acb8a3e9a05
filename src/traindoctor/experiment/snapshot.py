"""What is needed to run K steps of the run again: weights and optimizer state at a step, and the batches after it.

Kept are the snapshot of the first optimizer step and the two latest ones, each with the batches of the steps that follow it. Once
the loss is no longer finite no new one is taken: the last good one stays. All are copies, within a bound that is
stated in the record; a run that would exceed it is told why it has none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from inspect import getattr_static
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    BatchFetched,
    Clipped,
    Event,
    ForwardBegin,
    GradsCleared,
    LossCalled,
    StepBegin,
    TokensEmbedded,
)
from traindoctor.experiment.outside import OutsideChanges
from traindoctor.experiment.own_rule import OwnRule
from traindoctor.experiment.own_updates import OwnUpdates
from traindoctor.experiment.rules import Rule, rule_of
from traindoctor.experiment.settings import group_settings
from traindoctor.experiment.variables import data_variables
from traindoctor.ground.memory import memory, nbytes
from traindoctor.ground.modes import random_states
from traindoctor.ground.names import SHARDED, Names, local, sharded
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.our_ref import OurRef

# Steps replayed from the first, and the later batches that judge them.
FIRST_STEPS = 40
LATER_STEPS = 20
HELD_OUT = 6
# A recent snapshot so often; two are kept, so that there is always one with as many batches behind it.
EVERY = 30
# A step's loss at this many times that of the snapshot (plus half a nat) breaks the run.
BREAKS = 1.5
# On a device a snapshot is taken only where this many times its size is free: the run comes first.
FREE_FACTOR = 8
# Copies of one snapshot, and of the batches of one.
MAX_BYTES = 512 << 20
MAX_BATCH_BYTES = 256 << 20

# Until it is found by what it does.
UNKNOWN_RULE = "the script moves its weights itself, and by which rule is not known"

# Where in a step a tensor of the data was seen: event, number of that event in the step, place in it.
Source = tuple[str, int, int]


@dataclass
class StepLog:
    """What one step worked on and was told: copies of its data, rates, clipping."""

    step: int
    data: dict[Source, Tensor] = field(default_factory=dict)
    random: dict[str, Tensor] = field(default_factory=dict)
    """Random state of each device at the first forward pass."""
    losses: list[Tensor] = field(default_factory=list)
    """Roots of the backward passes."""
    scale: float = 1.0
    token_losses: list[Tensor] = field(default_factory=list)
    """What torch's loss functions gave, where they average."""
    settings: list[dict[str, Any]] = field(default_factory=list)
    """Of each parameter group at the step."""
    clips: list[tuple[str, float, tuple[str, ...]]] = field(default_factory=list)
    """Kind, limit and the names of the clipped parameters; those after the last backward pass."""
    num_optimizers: int = 0
    cleared: bool = False
    """zero_grad was called since the step before."""
    bytes: int = 0

    @property
    def loss(self) -> float:
        return sum(float(loss) for loss in self.losses) / self.scale if self.losses else math.nan

    @property
    def token_loss(self) -> float:
        """Mean over the step's calls of the loss function; NaN where none was seen."""
        if not self.token_losses:
            return math.nan
        return sum(float(loss) for loss in self.token_losses) / len(self.token_losses)


@dataclass
class Snapshot:
    """The run just before the optimizer's step `step`, and the logs of this step and those after it."""

    step: int
    parameters: dict[str, Tensor]
    rule: Rule | str
    """How the optimizer goes on from here, or why that cannot be repeated."""
    groups: list[list[str]]
    """Names of the parameters of each group."""
    wanted: int
    logs: list[StepLog] = field(default_factory=list)
    bytes: int = 0
    memo: dict[Any, Any] = field(default_factory=dict)
    """Controls that were already run, for the next experiment from here."""

    @property
    def complete(self) -> bool:
        return len(self.logs) >= self.wanted

    @property
    def sound(self) -> bool:
        """Its losses are finite: from a broken state an experiment proves nothing."""
        return bool(self.logs) and all(math.isfinite(log.loss) for log in self.logs[:3])

    @property
    def breaks(self) -> bool:
        """The run breaks in the steps that it covers."""
        if not self.sound:
            return False
        limit = BREAKS * abs(self.logs[0].loss) + 0.5
        return any(not log.loss <= limit for log in self.logs)


class Keeper:
    """Listens to the run and keeps its snapshots: `first` of the first optimizer step, `recent` the two latest."""

    def __init__(self, names: Names, *, max_bytes: int = MAX_BYTES) -> None:
        self.names = names
        self.max_bytes = max_bytes
        self.first: Snapshot | None = None
        self.recent: list[Snapshot] = []
        self.refusal: str | None = None
        self.broken = False
        self.outside = OutsideChanges(names)
        """Decay by hand, which a replay must repeat."""
        self.allowed: Callable[[int], bool] = lambda step: True
        """Asked before each later snapshot: a copy of a large model is no small thing."""
        self.looks_at_variables = True
        """Until it is known that the taps see all that a step needs: a look takes tens of microseconds."""
        self.nobody_steps: Callable[[], bool] = lambda: False
        """Whether there is no optimizer: the script then moves its weights itself."""
        self.own = OwnUpdates(names, steps=FIRST_STEPS + HELD_OUT)
        self._log: StepLog | None = None
        self._own_step: StepLog | None = None
        """The latest step of a script that moves its weights itself."""
        self._seen: dict[int, tuple[OurRef, Tensor]] = {}
        self._counts: dict[str, int] = {}
        self._decided = (-1, False)
        self._clip_names: dict[tuple[int, ...], tuple[str, ...]] = {}

    @property
    def kept(self) -> list[Snapshot]:
        return [s for s in (self.first, *self.recent) if s is not None]

    @property
    def bytes(self) -> int:
        return sum(s.bytes + sum(log.bytes for log in s.logs) for s in self.kept)

    @property
    def logs(self) -> dict[int, StepLog]:
        """Every step whose data were kept."""
        return {log.step: log for s in self.kept for log in s.logs}

    @property
    def latest(self) -> Snapshot | None:
        """The most recent sound snapshot with enough batches behind it."""
        enough = [s for s in self.recent if len(s.logs) >= LATER_STEPS + HELD_OUT and s.sound]
        return enough[-1] if enough else None

    @property
    def breaking(self) -> Snapshot | None:
        """The first snapshot in whose steps the run breaks."""
        return next((s for s in self.kept if s.breaks), None)

    def describe(self) -> dict[str, Any]:
        """For the record: what is kept, what it takes and what it may take."""
        return {
            "steps": [s.step for s in self.kept],
            "batches": [len(s.logs) for s in self.kept],
            "bytes": self.bytes,
            "bound_bytes": 3 * (self.max_bytes + MAX_BATCH_BYTES),
            "refusal": self.refusal,
        }

    def on(self, event: Event, step: int) -> None:
        """Every event of the run. Steps that no snapshot wants cost a comparison."""
        if self.refusal is not None:
            return
        self.outside.on(event, step)
        if not self.wants(step):
            return
        if self._log is None or self._log.step != step:
            self._log = StepLog(step)
            self._seen.clear()
            self._counts.clear()
        log = self._log
        if isinstance(event, ForwardBegin):
            if event.grad:
                if event.wants_grad and not log.random:
                    log.random = dict(random_states(list(tensors_in((event.args, event.kwargs)))))
                self._keep(log, "forward", (event.args, event.kwargs))
        elif isinstance(event, LossCalled):
            if event.wants_grad:
                self._keep(log, "loss", event.target)
                if event.reduction == "mean":
                    log.token_losses.append(event.output.detach().clone())
        elif isinstance(event, TokensEmbedded):
            if event.wants_grad:
                self._keep(log, "tokens", event.index)
        elif isinstance(event, BatchFetched):
            self._keep(log, "batch", event.batch)
        elif isinstance(event, BackwardBegin):
            log.scale = event.scale
            log.losses += [root.detach().sum().clone() for root in event.roots]
            log.clips.clear()
            if self.looks_at_variables:
                self._keep_variables(log)
        elif isinstance(event, BackwardEnd):
            if self.nobody_steps():
                self._moves_itself(log, event)
        elif isinstance(event, Clipped):
            if self._own_step is not None and self._own_step.step == step - 1:
                self.own.clipped()
                log = self._own_step  # there a step ends with its backward pass
            log.clips.append((event.kind, event.limit, self._names_of(event)))
        elif isinstance(event, GradsCleared):
            log.cleared = True
        elif isinstance(event, StepBegin):
            self._stepped(log, event.optimizer)

    def wants(self, step: int) -> bool:
        """Whether the data of this step are kept: decided at its first event."""
        if self._decided[0] != step:
            early = (
                self.first is None and step < EVERY
            )  # a pass without a step may come first, to try the model
            looks = step % EVERY == EVERY // 2 and self._own_step is not None
            wanted = early or looks or step % EVERY == 0 or any(not s.complete for s in self.kept)
            self._decided = (step, wanted)
        return self._decided[1]

    def _keep(self, log: StepLog, kind: str, tree: Any) -> None:
        number = self._counts[kind] = self._counts.get(kind, -1) + 1
        for place, tensor in enumerate(tensors_in(_plain(tree))):
            # Values that depend on parameters are the replay's to make.
            if tensor.requires_grad or isinstance(tensor, torch.nn.Parameter):
                continue
            known = self._seen.get(id(tensor))
            if known is None or known[0]() is not tensor:
                log.bytes += nbytes(tensor)
                if log.bytes * (FIRST_STEPS + HELD_OUT) > min(MAX_BATCH_BYTES, memory.bound // 2):
                    self.refusal = "the batches are too large to keep"
                    self.first, self.recent = None, []
                    return
                known = (OurRef(tensor), local(tensor).detach().clone())
                self._seen[id(tensor)] = known
            log.data[kind, number, place] = known[1]

    def _keep_variables(self, log: StepLog) -> None:
        """As far as there is room; what is given to modules and losses comes first."""
        nth = self._counts["backward"] = self._counts.get("backward", -1) + 1
        for number, place, tensor in data_variables(nth):
            known = self._seen.get(id(tensor))
            if known is None or known[0]() is not tensor:
                size = nbytes(tensor)
                if (log.bytes + size) * (FIRST_STEPS + HELD_OUT) > MAX_BATCH_BYTES // 2:
                    continue
                log.bytes += size
                known = (OurRef(tensor), local(tensor).detach().clone())
                self._seen[id(tensor)] = known
            log.data["variable", number, place] = known[1]

    def _names_of(self, event: Clipped) -> tuple[str, ...]:
        key = tuple(map(id, event.parameters))
        if key not in self._clip_names:
            self._clip_names[key] = tuple(self.names.of(p) for p in event.parameters)
        return self._clip_names[key]

    def _stepped(self, log: StepLog, optimizer: torch.optim.Optimizer) -> None:
        log.num_optimizers += 1
        if log.num_optimizers > 1:
            return
        if self._own_step is not None:  # there is an optimizer after all
            self.first = self._own_step = None
        log.settings = [group_settings(group) for group in optimizer.param_groups]
        if self.first is None and log.step < EVERY:
            self.first = self._take(log.step, optimizer)
        elif log.step % EVERY == 0 and self.allowed(log.step) and not self._breaks(log):
            snapshot = self._take(log.step, optimizer)
            if snapshot is not None:
                self.recent = [*self.recent[-1:], snapshot]
        for snapshot in self.kept:
            if not snapshot.complete:
                snapshot.logs.append(log)

    def _moves_itself(self, log: StepLog, event: BackwardEnd) -> None:
        """The step's data are complete, and its weights are still those of its passes."""
        if self.first is None and log.step < EVERY:
            self.first = self._taken(log.step, [])
        if self.own.enough and log.step % EVERY in (0, EVERY // 2):
            self.own.look_again(event)
        if self.first is not None:
            self.own.after_backward(event)
            self._own_step = log
            if not self.first.complete:
                self.first.logs.append(log)

    def settle(self) -> OwnRule | None:
        """The rule that a script's own updates follow, once enough of them were seen; its snapshot goes by it from then on."""
        first = self.first
        if first is None or first.rule != UNKNOWN_RULE or self._own_step is None:
            return None
        found = self.own.rule()
        if isinstance(found, str):
            first.rule = f"the script moves its weights itself, and {found}"
            return None
        first.groups = found.groups
        first.rule = Rule(getattr(torch.optim, found.kind), found.settings[0], [])
        # What the last one of them did was not seen any more.
        del first.logs[len(found.settings) + 1 :]
        first.wanted = len(first.logs)
        for log, settings in zip(first.logs, [*found.settings, found.settings[-1]]):
            log.settings = settings
        return found

    def _breaks(self, log: StepLog) -> bool:
        """From the first loss on that is not finite; a step whose loss was not seen says nothing."""
        self.broken = self.broken or any(not math.isfinite(float(loss)) for loss in log.losses)
        return self.broken

    def _take(self, step: int, optimizer: torch.optim.Optimizer) -> Snapshot | None:
        """Copies. None, with the reason, where the bound does not allow it."""
        if sharded(p for group in optimizer.param_groups for p in group["params"]):
            self.refusal = SHARDED
            return None
        kept = sum(nbytes(t) for t in tensors_in(list(vars(optimizer).values())))
        held = [list(group["params"]) for group in optimizer.param_groups]
        snapshot = self._taken(step, held, kept)
        if snapshot is not None:
            try:
                snapshot.rule = rule_of(optimizer)
            except ReplayError as error:
                snapshot.rule = str(error)
        return snapshot

    def _taken(self, step: int, held: list[list[Tensor]], state_bytes: int = 0) -> Snapshot | None:
        """`held`: the parameters of each group of an optimizer, whose state takes so many bytes."""
        parameters = {name: p for name, p in self.names.parameters() if p.requires_grad}
        groups = [[self.names.of(p) for p in group] for group in held]
        for names, group in zip(groups, held):
            parameters |= dict(zip(names, group))
        size = sum(nbytes(local(p)) for p in parameters.values()) + state_bytes
        bound = min(self.max_bytes, memory.room(), _free_bytes(parameters.values()) // FREE_FACTOR)
        if size > bound:
            if self.first is None:
                self.refusal = (
                    f"a snapshot would take {size >> 20} MiB, the bound is {bound >> 20} MiB"
                )
            return None
        return Snapshot(
            step=step,
            parameters={name: local(p).detach().clone() for name, p in parameters.items()},
            rule=UNKNOWN_RULE,
            groups=groups,
            wanted=FIRST_STEPS + HELD_OUT,
            bytes=size,
        )


def _free_bytes(tensors: Iterable[Tensor]) -> int:
    """Free memory of the fullest device; on the CPU the bound alone counts."""
    devices = {t.device for t in tensors if t.is_cuda}
    return min((torch.cuda.mem_get_info(device)[0] for device in devices), default=sys.maxsize)


def _plain(tree: Any) -> Any:
    """Batches of Hugging Face are no dictionaries, but hold one."""
    held = getattr_static(tree, "data", None)
    return held if type(held) is dict else tree
