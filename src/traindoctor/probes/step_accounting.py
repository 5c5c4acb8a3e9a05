"""Step accounting: did each parameter move as the optimizer's own rule says?

On a sampled step the parameters, gradients and state are copied before the step; the rule is repeated on the
copies in float64, and the change it predicts is compared with the change that happened.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.events import Event, ForwardBegin, StepBegin, StepEnd
from traindoctor.experiment.rules import rule_of
from traindoctor.ground.memory import memory
from traindoctor.ground.names import local
from traindoctor.ground.trees import ModuleTrees
from traindoctor.probes.base import Cost
from traindoctor.record import ExamResult, RecordWriter

# Copies for one step. A larger model is sampled by tensors.
MAX_ELEMENTS = 8_000_000
# Of one weight: itself and its gradient twice in float64, two moments as they are and in float64.
BYTES_PER_ELEMENT = 56
# Whatever the governor says of its price: an early step, so that a short run has one account, and one when
# the moments have filled. Step 0 says little: zero-initialised adapters give others no gradient yet.
ALWAYS = (1, 16)
# ... of so many optimizers: a script may make a new one at every epoch.
MOST_OPTIMIZERS = 4


@dataclass(frozen=True)
class Account:
    """One parameter's (or the whole step's) expected and real change."""

    name: str
    dtype: str
    error: float
    """Norm of real minus expected change, over the norm of the expected one."""
    moved: float
    """Share of entries that changed."""
    should: float
    """Share of entries that the rule changes in float64."""
    lost: float
    """Share of entries that should have changed and did not."""
    ulp_allowance: float
    """The error over half the spacing of the weights' dtype (2-norms): under 1, rounding explains it."""
    relative: float
    """Norm of the expected change over the norm of the weights."""


@dataclass
class Sums:
    """What an Account needs, added up over entries; tensors until the end, so that nothing waits."""

    error: Tensor
    expected: Tensor
    weight: Tensor
    allowance: Tensor
    moved: Tensor
    should: Tensor
    lost: Tensor
    entries: int

    def account(self, name: str, dtype: str) -> Account:
        expected, weight = self.expected.sqrt().item(), self.weight.sqrt().item()
        allowance, error = self.allowance.sqrt().item(), self.error.sqrt().item()
        return Account(
            name=name,
            dtype=dtype,
            error=error / expected if expected else (math.inf if error else 0.0),
            moved=self.moved.item() / self.entries,
            should=self.should.item() / self.entries,
            lost=self.lost.item() / self.entries,
            ulp_allowance=error / allowance if allowance else 0.0,
            relative=expected / weight if weight else math.inf,
        )


def half_spacing(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between neighbouring numbers of `dtype` at each (float64) weight."""
    exponent = torch.frexp(weight).exponent  # |w| = m * 2**exponent, m in [0.5, 1)
    smallest = math.frexp(torch.finfo(dtype).tiny)[1]
    exponent = exponent.clamp(min=smallest)
    return torch.ldexp(torch.full_like(weight, torch.finfo(dtype).eps), exponent - 1) / 2


def compare(before: Tensor, after: Tensor, expected: Tensor, dtype: torch.dtype) -> Sums:
    """`before`, `after`: the real weights; `expected`: where the rule says they go. All float64."""
    real, predicted = after - before, expected - before
    should = predicted != 0
    moved = real != 0
    # The result is rounded at the larger of the two magnitudes.
    spacing = half_spacing(torch.maximum(before.abs(), expected.abs()), dtype)
    return Sums(
        error=(real - predicted).square().sum(),
        expected=predicted.square().sum(),
        weight=before.square().sum(),
        allowance=spacing.square().sum(),
        moved=moved.sum(),
        should=should.sum(),
        lost=(should & ~moved).sum(),
        entries=before.numel(),
    )


def add(parts: list[Sums]) -> Sums:
    """Sums over all parameters."""
    first, *rest = parts
    total = Sums(**vars(first))
    for part in rest:
        for key, value in vars(part).items():
            other = getattr(total, key)
            setattr(
                total, key, other + (value.to(other.device) if torch.is_tensor(value) else value)
            )
    return total


class Capture:
    """The optimizer's parameters, gradients and state before one step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.chosen = _choose(optimizer)
        self.optimizer = optimizer
        self.rule = rule_of(optimizer, self.chosen)
        self.before = [[_wide(p) for p in group] for group in self.chosen]
        # A fused step divides by the scaler's factor itself.
        scale = vars(optimizer).get("grad_scale")
        divide = 1.0 if scale is None else float(scale)
        self.gradients = [
            [None if p.grad is None else _wide(p.grad) / divide for p in group]
            for group in self.chosen
        ]
        self.partial = sum(map(len, self.chosen)) < sum(
            len(g["params"]) for g in optimizer.param_groups
        )

    def accounts(self, names: Mapping[int, str]) -> tuple[Account, list[Account]]:
        """The whole step's and each parameter's; the script's step must have happened."""
        expected = [[tensor.clone() for tensor in group] for group in self.before]
        self.rule.over(expected, dtype=torch.float64).step(self.gradients)
        parts, each = [], []
        for i, group in enumerate(self.chosen):
            for j, parameter in enumerate(group):
                if self.gradients[i][j] is None:
                    continue
                after = local(parameter).detach().double()
                sums = compare(self.before[i][j], after, expected[i][j], parameter.dtype)
                dtype = str(parameter.dtype).removeprefix("torch.")
                name = names.get(id(parameter), f"group {i}, parameter {j}")
                parts.append(sums)
                each.append(sums.account(name, dtype))
        if not parts:
            raise ReplayError("no parameter of the optimizer had a gradient")
        dtypes = {account.dtype for account in each}
        return add(parts).account("all", "mixed" if len(dtypes) > 1 else dtypes.pop()), each


def _choose(optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """All parameters where they fit the bound; else evenly spread whole tensors that do."""
    groups = [
        [p for p in group["params"] if p.is_floating_point()] for group in optimizer.param_groups
    ]
    total = sum(p.numel() for group in groups for p in group)
    bound = min(MAX_ELEMENTS, memory.room() // BYTES_PER_ELEMENT)
    if total <= bound:
        return groups
    stride = math.ceil(total / max(1, bound))
    left, count = bound, 0
    chosen: list[list[Tensor]] = []
    for group in groups:
        kept = []
        for p in group:
            count += 1
            if count % stride == 0 and p.numel() <= left:
                kept.append(p)
                left -= p.numel()
        chosen.append(kept)
    return chosen


def _wide(tensor: Tensor) -> Tensor:
    """A float64 copy of this rank's part."""
    return local(tensor).detach().to(torch.float64, copy=True)


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """A fused step that finds gradients of a scaler that are not finite does nothing."""
    found = vars(optimizer).get("found_inf")
    return found is not None and bool(found)


class StepAccounting:
    """Writes the exam `step_accounting` and the share of lost updates by parameter."""

    name: ClassVar[str] = "step_accounting"
    cost: ClassVar[Cost] = "costly"
    every: ClassVar[int] = 100
    hears: ClassVar[tuple[type, ...]] = (
        ForwardBegin,
        StepBegin,
        StepEnd,
    )

    def __init__(self) -> None:
        self.trees = ModuleTrees()
        self._capture: Capture | None = None
        self._result: tuple[Account, list[Account], bool, str] | None = None
        self._refusal: str | None = None
        self._refused: list[weakref.ref[torch.optim.Optimizer]] = []
        self._heard: list[tuple[weakref.ref[torch.optim.Optimizer], int]] = []
        self._columns: list[str] = []

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin) and event.wants_grad:
            self.trees.learn(event.module)
        elif isinstance(event, StepBegin):
            if self._steps_heard(event.optimizer) in ALWAYS or (due and event.step > 0):
                self._begin(event.optimizer)
        elif isinstance(event, StepEnd) and self._capture is not None:
            capture, self._capture = self._capture, None
            if capture.optimizer is event.optimizer:
                self._end(capture)

    def _steps_heard(self, optimizer: torch.optim.Optimizer) -> int | None:
        """Of this optimizer, this one not counted; None where too many others came before it."""
        for number, (known, steps) in enumerate(self._heard):
            if known() is optimizer:
                self._heard[number] = known, steps + 1
                return steps
        if len(self._heard) >= MOST_OPTIMIZERS:
            return None
        self._heard.append((weakref.ref(optimizer), 1))
        return 0

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        self._capture = None
        if any(known() is optimizer for known in self._refused) or _is_skipped(optimizer):
            return
        try:
            self._capture = Capture(optimizer)
        except ReplayError as error:
            self._refuse(optimizer, error)

    def _end(self, capture: Capture) -> None:
        try:
            whole, each = capture.accounts(self.trees.names())
            kind = type(capture.optimizer).__name__
            self._result = (whole, each, capture.partial, kind)
        except ReplayError as error:
            self._refuse(capture.optimizer, error)

    def _refuse(self, optimizer: torch.optim.Optimizer, error: ReplayError) -> None:
        """A rule that cannot be repeated will not be repeatable later."""
        self._refusal = str(error)
        self._refused.append(weakref.ref(optimizer))

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._result is not None:
            whole, each, partial, kind = self._result
            self._result = None
            record.exam(
                ExamResult("step_accounting", step, "done", values(whole, each, partial, kind))
            )
            # A column for every parameter, so that one without a gradient today does not move the others.
            lost = {account.name: account.lost for account in each}
            self._columns += [name for name in lost if name not in self._columns]
            row = [lost.get(name, math.nan) for name in self._columns]
            record.layers("update.lost", step, self._columns, row)
        elif self._refusal is not None:
            record.exam(ExamResult("step_accounting", step, "refused", {}, self._refusal))
            self._refusal = None


def values(whole: Account, each: list[Account], partial: bool, kind: str) -> dict[str, Any]:
    """The exam's numbers: the whole step's, and the parameters that are furthest from their rule."""
    worst = sorted(each, key=lambda account: (-account.lost, -account.error))[:5]
    return {
        **{key: value for key, value in asdict(whole).items() if key != "name"},
        "optimizer": kind,
        "partial": partial,
        "worst": [asdict(account) for account in worst],
    }
