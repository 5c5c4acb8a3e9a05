"""K steps of the run again, with at most one thing changed: the engine of the experiments.

    plan = Plan.of(snapshot, tapes)
    control = plan.run(Change())
    variant = plan.run(Change(rate=lambda k: 0.1))

Every run starts from the snapshot's weights and optimizer state, takes the script's own batches, random states,
rates and clipping step by step, and is judged by the loss of its averaged last weights on the batches that follow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.experiment.arrival import ByHand
from traindoctor.experiment.batches import DataMap, map_data
from traindoctor.experiment.outside import Outside
from traindoctor.experiment.rules import HALVES, Rule
from traindoctor.experiment.snapshot import HELD_OUT, Snapshot, StepLog
from traindoctor.experiment.stepper import Stepper
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import value_of
from traindoctor.graph.sites import LossSite
from traindoctor.tape.execute import Replay, replay
from traindoctor.tape.operators import CLASS_LOSSES
from traindoctor.tape.ops import Ref
from traindoctor.tape.tape import StepTape
from traindoctor.tape.unit_clipping import clip_units

# Fewer steps than this show nothing, whatever is changed.
MIN_STEPS = 10
MIN_BATCHES = MIN_STEPS + HELD_OUT
# The last iterates whose mean is judged: it takes out what annealing alone brings.
AVERAGED = 10
# A loss at this many times its start (plus a nat) will not come back within the experiment.
BLOWN = 2.0
# ... if it stays there for so many steps: one batch of outliers is as high in a sound run.
STAYS = 3
# Forward, backward and update of a replayed step, in forward passes.
PASSES_PER_STEP = 3.5
# Settings that schedules move along with the rate.
SCHEDULED = ("lr", "momentum", "betas", "weight_decay")

# A script that leaves its weights to the optimizer.
NOTHING = Outside(-1)


def unchanged(position: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Change:
    """What differs from the run: factors on rate and clip limit by position, settings put over the groups'."""

    rate: Callable[[int], float] = unchanged
    absolute_rate: float | None = None
    """The rate itself, for every group in proportion to its own peak."""
    limit: float = 1.0
    clip_at: float | None = None
    """A limit of the whole gradient's norm, for scripts without one."""
    loss: float = 1.0
    """A factor on the gradients, as a factor on the loss gives."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    decay_by_hand: bool = True
    """False: without the script's own shrinking of weights."""
    fresh_state: bool = False
    float_copy: bool = False
    """The optimizer steps float32 copies; the weights of half precision are what these are rounded to."""


@dataclass
class Trial:
    """One replayed run of K steps."""

    losses: list[float]
    judged: float
    """Mean loss of the averaged last weights on the later batches; NaN where the run blew up."""
    blown: bool

    def values(self) -> dict[str, Any]:
        """For the record."""
        shown = self.losses[:: max(1, len(self.losses) // 10)]
        return {"loss": self.judged, "blown": self.blown, "losses": [round(x, 5) for x in shown]}


@dataclass
class Plan:
    """A snapshot with the tape that its steps are replayed on, and where their data goes."""

    snapshot: Snapshot
    rule: Rule
    tape: StepTape
    data: DataMap
    train: list[StepLog]
    held_out: list[StepLog]
    unit: float
    """The step's root over its loss in nats per target: 8 for eight micro-batches that are not divided, the number of
    targets for a sum over them."""
    outside: Outside | None = None
    """By what the script itself shrinks weights between steps."""
    gradients: ByHand | None = None
    """What the script itself does to its gradients before the step."""
    rounds: int = 1
    """How often the batches are gone through; after the first time the last step's rate stays."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        tapes: Mapping[int, StepTape],
        logs: Mapping[int, StepLog],
        *,
        steps: int,
        outside: Outside | None = None,
        gradients: ByHand | None = None,
    ) -> Plan:
        """Raises ReplayError with the reason where this run cannot be repeated.

        `logs` are all that were kept: the data is followed on the taped steps among them.
        """
        if any(log.num_optimizers > 1 for log in snapshot.logs):
            raise ReplayError("several optimizers step together")
        if isinstance(snapshot.rule, str):
            raise ReplayError(snapshot.rule)
        tape, log = _tape_for(snapshot, tapes, logs)
        others = [(t, logs[s]) for s, t in tapes.items() if s in logs]
        data = map_data(tape, log, others)
        usable = [one for one in snapshot.logs if data.fits(one)]
        if len(usable) < MIN_BATCHES:
            few = f"{len(usable)} of {len(snapshot.logs)} kept batches have the shape of the taped one"
            try:
                data = data.stretched(log, others)
            except ReplayError as error:
                raise ReplayError(f"{few}, and {error}") from error
            usable = [one for one in snapshot.logs if data.fits(one)]
        if len(usable) < MIN_BATCHES:
            raise ReplayError(f"only {len(usable)} batches were kept; {MIN_BATCHES} are needed")
        steps = min(steps, len(usable) - HELD_OUT)
        missing = {n for group in snapshot.groups for n in group} - set(snapshot.parameters)
        if missing:
            raise ReplayError(f"{missing.pop()} was not kept")
        token = log.token_loss
        unit = log.loss / token if math.isfinite(token) and token > 0 and log.loss > 0 else 0.0
        unit = unit or summed_targets(tape)
        held_out = usable[steps : steps + HELD_OUT]
        train = usable[:steps]
        return cls(snapshot, snapshot.rule, tape, data, train, held_out, unit, outside, gradients)

    @property
    def steps(self) -> int:
        return len(self.train) * self.rounds

    def longer(self, rounds: int) -> Plan:
        """The same batches again and again: more steps than there are batches that were kept."""
        return replace(self, rounds=rounds)

    @property
    def peak(self) -> list[float]:
        """The highest rate of each group in the plan's steps."""
        return [
            max(float(log.settings[i].get("lr", math.nan)) for log in self.train)
            for i in range(len(self.snapshot.groups))
        ]

    def before(self) -> float:
        """The loss on the later batches at the snapshot, before any step."""
        return self._before[0]

    @property
    def seconds(self) -> float:
        """What one run of all steps takes, from the time of the passes that `before` makes."""
        return self._before[1] / HELD_OUT * (PASSES_PER_STEP * self.steps + HELD_OUT)

    @property
    def _before(self) -> tuple[float, float]:
        key = ("before", self.held_out[0].step)
        if key not in self.snapshot.memo:
            began = time.perf_counter()
            loss = self._judge(self.snapshot.parameters)
            self.snapshot.memo[key] = (loss, time.perf_counter() - began)
        return self.snapshot.memo[key]  # type: ignore[no-any-return]

    def control(self, order: Sequence[int] | None = None) -> Trial:
        """The run as it was; with another order of its batches, a measure of the noise."""
        key = ("control", self.steps, None if order is None else tuple(order))
        if key not in self.snapshot.memo:
            self.snapshot.memo[key] = self.run(Change(), order)
        return self.snapshot.memo[key]  # type: ignore[no-any-return]

    def permuted(self, count: int, change: Change | None = None) -> list[Trial]:
        """The control (or a variant) with its batches in other orders, the same ones at each call."""
        generator = torch.Generator().manual_seed(0)
        orders = [torch.randperm(self.steps, generator=generator).tolist() for _ in range(count)]
        if change is None:
            return [self.control(order) for order in orders]
        return [self.run(change, order) for order in orders]

    def fidelity(self, control: Trial, steps: int | None = None) -> float:
        """The largest difference between the control's losses and the script's own, in nats, over the first steps.

        Counted up to the first step that had to be left out: from there on the replay is another run.
        """
        worst = 0.0
        for position, (log, loss) in enumerate(zip(self.train[:steps], control.losses)):
            if log.step != self.snapshot.step + position:
                break
            own = log.loss / self.unit
            if math.isfinite(own) and own < BLOWN * abs(self.train[0].loss / self.unit) + 1:
                worst = max(worst, abs(own - loss))
        return worst

    def run(self, change: Change, order: Sequence[int] | None = None) -> Trial:
        """K steps. Rates and clipping go by position, data and random state by the batch."""
        parameters = {name: p.clone() for name, p in self.snapshot.parameters.items()}
        # The snapshot was taken at the step; its forward pass had the weights of before any shrinking.
        undone = self.outside.before if self.outside else {}
        shrink(parameters, {name: 1 / factor for name, factor in undone.items()})
        stepped = {n: p.float() for n, p in parameters.items()} if change.float_copy else parameters
        optimizer = self._optimizer(stepped, change)
        total: dict[str, Tensor] = {}
        losses: list[float] = []
        tail = min(AVERAGED, max(1, self.steps // 4))
        kept = len(self.train)
        for position in range(self.steps):
            log = self.train[min(position, kept - 1)]
            batch = self.train[(order[position] if order is not None else position) % kept]
            loss, gradients = self._gradients(parameters, batch)
            losses.append(loss)
            if has_blown(losses):
                return Trial(losses, math.nan, True)
            shrinks = self.outside if self.outside and change.decay_by_hand else NOTHING
            shrink(stepped, shrinks.before)
            self._step(optimizer, gradients, log, position, change)
            shrink(stepped, shrinks.after)
            parameters = like(parameters, stepped)
            if position >= self.steps - tail:
                for name, p in stepped.items():
                    # A sum in half precision would lose what it is taken for.
                    own = p.detach().float() if p.dtype in HALVES else p.detach()
                    total[name] = total[name] + own if name in total else own.clone()
        mean = {name: summed / tail for name, summed in total.items()}
        judged = self._judge(like(parameters, mean))
        return Trial(losses, judged, not math.isfinite(judged))

    def update_kl(self) -> float | None:
        """KL(before || after) of the run's own first update, nats per position; None without class logits."""
        sites = [s for s in loss_sites(self.tape) if s.in_root and s.num_classes > 1]
        sites = [s for s in sites if s.kind in CLASS_LOSSES]
        if not sites:
            return None
        site, log = sites[0], self.train[0]
        parameters = {name: p.clone() for name, p in self.snapshot.parameters.items()}
        optimizer = self._optimizer(parameters, Change())
        before = self._logits(parameters, log, site.logits)
        _, gradients = self._gradients(parameters, log)
        self._step(optimizer, gradients, log, 0, Change())
        after = self._logits(parameters, log, site.logits)
        p, q = (torch.log_softmax(site.rows(x).double(), dim=-1) for x in (before, after))
        return float((p.exp() * (p - q)).sum(dim=-1).mean().clamp(min=0.0))

    # -- one step ----------------------------------------------------------------------------------

    def _optimizer(self, parameters: Mapping[str, Tensor], change: Change) -> Stepper:
        tensors = [[parameters[name] for name in group] for group in self.snapshot.groups]
        optimizer = self.rule.over(tensors, dtype=torch.float32 if change.float_copy else None)
        if change.fresh_state:
            optimizer.forget()
        return optimizer

    def _gradients(
        self, parameters: Mapping[str, Tensor], log: StepLog
    ) -> tuple[float, dict[str, Tensor | None]]:
        replayed = self._replayed(parameters, log, gradients=True)
        scale = self._scale
        loss = float(replayed.loss.detach()) / scale / self.unit
        gradients = replayed.gradients()
        if scale != 1.0:
            gradients = {n: None if g is None else g / scale for n, g in gradients.items()}
        return loss, gradients

    def _judge(self, parameters: Mapping[str, Tensor]) -> float:
        losses = [float(self._replayed(parameters, log).loss.detach()) for log in self.held_out]
        return sum(losses) / self._scale / self.unit / len(losses)

    def _logits(self, parameters: Mapping[str, Tensor], log: StepLog, ref: Ref) -> Tensor:
        return self._replayed(parameters, log, want=(ref,))[ref]

    def _replayed(
        self,
        parameters: Mapping[str, Tensor],
        log: StepLog,
        *,
        gradients: bool = False,
        want: Sequence[Ref] = (),
    ) -> Replay:
        """A kept step with these weights."""
        return replay(
            self.data.tape_for(log),
            parameters={n: p for n, p in parameters.items() if n in self.tape.parameters},
            batch=self.data.batch(log),
            substitute=self.data.substitute(log),
            random=log.random or None,
            gradients=gradients,
            want=want,
        )

    @property
    def _scale(self) -> float:
        return self.tape.roots[0].scale

    def _by_hand(
        self, gradients: dict[str, Tensor | None], change: Change
    ) -> dict[str, Tensor | None]:
        """The script's own division or clipping."""
        own = self.gradients
        if own is None:
            return gradients
        if own.kind == "factor":
            return {n: None if g is None else g * own.value for n, g in gradients.items()}
        gradients = dict(gradients)
        if own.kind == "unit clip":
            for name, limits in own.limits.items():
                if (g := gradients.get(name)) is not None:
                    gradients[name] = clip_units(g, limits, change.limit)
            return gradients
        clip(gradients, list(gradients), "norm", own.value * change.limit)
        return gradients

    def _clipped(
        self, gradients: dict[str, Tensor | None], log: StepLog, change: Change
    ) -> dict[str, Tensor | None]:
        """As they arrive at the optimizer."""
        gradients = dict(self._by_hand(gradients, change))
        if change.loss != 1.0:
            gradients = {n: None if g is None else g * change.loss for n, g in gradients.items()}
        for kind, limit, names in log.clips:
            clip(gradients, names, kind, limit * change.limit)
        return gradients

    @torch.no_grad()
    def _step(
        self,
        optimizer: Stepper,
        gradients: dict[str, Tensor | None],
        log: StepLog,
        position: int,
        change: Change,
    ) -> None:
        if position == 0 and change.limit != 1.0 and not change.fresh_state:
            # Adam forgets a factor on all gradients: one that begins here would be a longer step for a while.
            usual, wider = (length(self._clipped(gradients, log, c)) for c in (Change(), change))
            if usual > 0 and math.isfinite(wider):
                optimizer.rescale(wider / usual)
        gradients = self._clipped(gradients, log, change)
        if change.clip_at is not None:
            gradients = dict(gradients)
            clip(gradients, list(gradients), "norm", change.clip_at)
        for group, settings in zip(optimizer.groups, log.settings):
            for key in SCHEDULED:
                if key in settings:
                    group[key] = settings[key]
            group |= {key: value for key, value in change.settings.items() if key in group}
            if "lr" in group:
                if change.absolute_rate is not None:
                    group["lr"] = change.absolute_rate
                group["lr"] = float(group["lr"]) * change.rate(position)
        optimizer.step([[gradients.get(name) for name in names] for names in self.snapshot.groups])


def has_blown(losses: Sequence[float]) -> bool:
    """Not finite, or far above its start for some steps on end."""
    limit = BLOWN * max(losses[0], 0.0) + 1.0
    last = losses[-STAYS:]
    return not math.isfinite(losses[-1]) or (len(last) == STAYS and min(last) > limit)


def like(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values in the precision of the parameters; those that have it already are not copied."""
    return {name: value.to(parameters[name].dtype) for name, value in values.items()}


def length(gradients: Mapping[str, Tensor | None]) -> float:
    return float(torch.nn.utils.get_total_norm([g for g in gradients.values() if g is not None]))


@torch.no_grad()
def shrink(parameters: Mapping[str, Tensor], factors: Mapping[str, float]) -> None:
    for name, factor in factors.items():
        if name in parameters:
            parameters[name].mul_(factor)


def clip(
    gradients: dict[str, Tensor | None], names: Sequence[str], kind: str, limit: float
) -> None:
    """Clips as torch does, over the parameters the script gave; gradients are replaced, not written to."""
    clipped = {n: g for n in names if (g := gradients.get(n)) is not None}
    if not clipped or not math.isfinite(limit):
        return
    if kind == "value":
        gradients |= {name: g.clamp(-limit, limit) for name, g in clipped.items()}
        return
    # By torch's own sum, to the last bit: a run with long steps would drift away from the script's.
    norm = torch.nn.utils.get_total_norm(clipped.values())
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    gradients |= {name: g * factor.to(g.dtype) for name, g in clipped.items()}


def summed_targets(tape: StepTape) -> float:
    """How many times the loss of one target the step's loss is, where a cross-entropy is a sum; 1 where it is none.

    The sum may be divided after all: libraries divide by the number of targets of the whole step.
    """
    sites = [s for s in loss_sites(tape) if s.in_root and s.num_classes > 1]
    summed = [s for s in sites if s.reduction == "sum"]
    if not summed or summed != sites:
        return 1.0
    targets = sum(int(s.valid.sum()) for s in summed)
    total = sum(_made(tape, site) for site in summed)
    divided = tape.loss / total if total > 0 else math.nan
    return float(targets * divided) if divided > 0 and math.isfinite(divided) else float(targets)


def _made(tape: StepTape, site: LossSite) -> float:
    """The sum that a loss function gave; NaN where that is no single number."""
    (ref, *others) = site.op.outputs or (None,)
    value = None if ref is None or others else value_of(tape, ref)
    return float(value) if value is not None and value.numel() == 1 else math.nan


def _tape_for(
    snapshot: Snapshot, tapes: Mapping[int, StepTape], logs: Mapping[int, StepLog]
) -> tuple[StepTape, StepLog]:
    """The tape nearest to the snapshot whose step's data were kept."""
    known = sorted((abs(step - snapshot.step), step) for step in tapes if step in logs)
    if not known:
        raise ReplayError("none of the steps whose batches were kept can be repeated")
    step = known[0][1]
    return tapes[step], logs[step]
