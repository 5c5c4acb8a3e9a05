"""The rule behind updates that a script writes itself, found by value: which rule of Adam's or SGD's family makes the
weights move as they did under the gradients that were there?

Of each tensor a few entries are known, step by step. Rate and decay of each step follow from the direction that a rule
gives (two numbers for all entries of a tensor); what is left over tells whether it is the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
"""Of each step (rows) and entry (columns)."""

# Fewer steps than this tell no long memory from another.
FEWEST = 8
# What the rule leaves over of the real changes: under 1e-4 for the right one in float32, 0.05 and more for its neighbours.
LEFT_OVER = 5e-3
# ... or what rounding of the weights explains, so many times over.
ROUNDING = 3.0
# Tensors whose rates and decays agree to these shares are of one group; a decay is a small part of what is seen.
SAME_RATE, SAME_DECAY = 0.01, 0.3
TINY = 1e-300
# A decay must take this share of what is left over without it; one under the other share of the rate is rounding.
DECAY_EXPLAINS, NO_DECAY = 0.3, 1e-5
# A tensor rests where its steps would have been so many times the spacing of its weights.
VISIBLE = 100.0
MEMORIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999)
EPS = (1e-8, 1e-6, 1e-4, 1e-2, 1e-10, 1e-7, 1e-5, 1e-3, 1e-1)
# The grid is tried on about so many entries; where its best leaves over more, none of it is near.
FEW_ENTRIES, WORTH_FINER = 256, 0.15
# The memories found on the grid are made finer by these shares, one after the other.
FINER = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
# ... and in the end held against round ones, whose distance from 1 is within this factor of theirs.
ROUND, NEAR = (*MEMORIES, 0.85, 0.7, 0.6, 0.97, 0.995, 0.9995), 8.0
# ... as long as each step leaves less over than this share of what it was.
LESS = 0.999


@dataclass(frozen=True)
class Sampled:
    """What was seen of a run of steps: weights before each step and after the last, gradients as they arrived."""

    weights: Values
    gradients: Values
    owner: NDArray[np.int64]
    """The tensor of each entry; entries of one tensor lie side by side."""
    names: tuple[str, ...]

    @property
    def changes(self) -> Values:
        return np.diff(self.weights, axis=0)

    def fewer(self) -> Sampled:
        """Entries of some tensors: enough to choose between memories that lie far apart."""
        kept = self.owner < max(1, FEW_ENTRIES * len(self.names) // len(self.owner))
        return Sampled(self.weights[:, kept], self.gradients[:, kept], self.owner[kept], self.names)

    @property
    def rounding(self) -> float:
        """What rounding alone leaves over."""
        moved = np.linalg.norm(self.changes)
        spacing = np.finfo(np.float32).eps / 2 * np.linalg.norm(self.weights[1:])
        return float(spacing / moved) if moved else np.inf


def resting(sampled: Sampled) -> list[str]:
    """Tensors that are never moved, under gradients that would move the others by far more than the weights' spacing."""
    felt = np.abs(sampled.gradients).sum(axis=0)
    moved = np.abs(sampled.changes).sum(axis=0)
    others = (moved > 0) & (felt > 0)
    if not others.any() or not np.isfinite(moved).all() or not np.isfinite(felt).all():
        return []
    spacing = np.finfo(np.float32).eps * np.abs(sampled.weights).max(axis=0)
    usual = np.minimum(np.median(moved[others]), np.median(moved[others] / felt[others]) * felt)
    visible = (usual > VISIBLE * spacing) & (felt > 0)
    still, seen = (_per_tensor(sampled, one.astype(float)) for one in (moved, visible))
    return [name for name, m, v in zip(sampled.names, still, seen) if v and not m]


@dataclass(frozen=True)
class OwnRule:
    """A rule of torch's that steps as the script does."""

    kind: str
    groups: list[list[str]]
    settings: list[list[dict[str, Any]]]
    """Of each step, for each group."""
    pull: float
    """Norm of the decay's part of the steps over that of the rest."""
    left_over: float


def adam(gradients: Values, first: float, second: float, eps: float) -> Values:
    """The direction of each step."""
    directions = np.empty_like(gradients)
    mean, square = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1])
    for step, gradient in enumerate(gradients):
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        root = np.sqrt(square / (1 - second ** (step + 1))) + eps
        directions[step] = mean / (1 - first ** (step + 1)) / root
    return directions


def sgd(gradients: Values, memory: float, nesterov: bool) -> Values:
    directions = np.empty_like(gradients)
    mean = np.zeros(gradients.shape[1])
    for step, gradient in enumerate(gradients):
        mean = memory * mean + gradient
        directions[step] = gradient + memory * mean if nesterov else mean
    return directions


def rule_of(sampled: Sampled) -> OwnRule | str:
    """The rule of all the steps, or of the first half of them; or why none is known."""
    rule, half = _rule_of(sampled), len(sampled.gradients) // 2
    if isinstance(rule, str) and half >= FEWEST:
        first = Sampled(
            sampled.weights[: half + 1], sampled.gradients[:half], sampled.owner, sampled.names
        )
        of_first = _rule_of(first)
        return of_first if isinstance(of_first, OwnRule) else rule
    return rule


def _rule_of(sampled: Sampled) -> OwnRule | str:
    if len(sampled.gradients) < FEWEST:
        return "too few of its steps were seen"
    if not np.isfinite(sampled.weights).all() or not np.isfinite(sampled.gradients).all():
        return "its first steps are not finite"
    if not sampled.changes.any(axis=1).all():
        return "some of its passes change no weight"
    limit = max(LEFT_OVER, ROUNDING * sampled.rounding)
    for fit in (_as_sgd, _as_adam):
        kind, own, directions = fit(sampled)
        rates, decays, left_over = _grouped(sampled, directions)
        if left_over <= limit:
            groups, settings = _groups_of(sampled.names, rates, decays, own)
            moves = np.linalg.norm(rates[:, sampled.owner] * directions)
            pulls = (rates * decays)[:, sampled.owner] * sampled.weights[:-1]
            pull = float(np.linalg.norm(pulls) / moves)
            return OwnRule(kind, groups, settings, pull, left_over)
    return "its updates follow no rule of Adam's or SGD's family"


def _as_sgd(sampled: Sampled) -> tuple[str, dict[str, Any], Values]:
    few = sampled.fewer()
    best = min(
        (_left_over(few, sgd(few.gradients, memory, nesterov)), memory, nesterov)
        for memory in MEMORIES[:-1]
        for nesterov in (False, True)[: 1 + (memory > 0)]
    )
    (memory,) = _finer(sampled, (best[1],), lambda memory: sgd(sampled.gradients, memory, best[2]))
    own = {"momentum": memory, "nesterov": best[2], "dampening": 0.0}
    return "SGD", own, sgd(sampled.gradients, memory, best[2])


def _as_adam(sampled: Sampled) -> tuple[str, dict[str, Any], Values]:
    def left(first: float, second: float, eps: float, among: Sampled = sampled) -> float:
        return _left_over(among, adam(among.gradients, first, second, eps))

    few = sampled.fewer()
    for eps in EPS[:4]:
        near = {
            (first, second): left(first, second, eps, few)
            for first, second in product(MEMORIES, repeat=2)
        }
        first, second = min(near, key=lambda pair: near[pair])
        if near[first, second] < WORTH_FINER:
            break
    first, second = _finer(
        sampled, (first, second), lambda a, b: adam(sampled.gradients, a, b, eps)
    )
    eps = min((eps, *EPS), key=lambda eps: left(first, second, eps))
    directions = adam(sampled.gradients, first, second, eps)
    return "AdamW", {"betas": (first, second), "eps": eps}, directions


def _finer(
    sampled: Sampled, found: tuple[float, ...], rule: Callable[..., Values]
) -> tuple[float, ...]:
    """Memories between those of the grid; a round one wins where it does as well."""
    best, own = _left_over(sampled, rule(*found)), list(found)
    if best <= ROUNDING * sampled.rounding or best > WORTH_FINER:
        return found
    for share in FINER:
        better = True
        while better:  # each one anew, as long as another one's change has helped
            better = False
            for which, sign in product(range(len(own)), (-1, 1)):
                trial = list(own)
                trial[which] = 1 - (1 - own[which]) * (1 + sign * share)
                left = _left_over(sampled, rule(*trial)) if trial[which] >= 0 else np.inf
                if left < LESS * best:
                    best, own, better = left, trial, True
    near = [[m for m in ROUND if 1 / NEAR <= (1 - m) / (1 - one) <= NEAR] for one in own]
    tried = ((_left_over(sampled, rule(*pair)), pair) for pair in product(*near))
    left, pair = min(tried, default=(np.inf, ()))
    return pair if left <= best else tuple(round(one, 5) for one in own)


def _left_over(sampled: Sampled, directions: Values) -> float:
    """Share of the changes that no rate and decay of each tensor and step explain."""
    rates, decays = _rates_and_decays(sampled, directions)
    made = rates[:, sampled.owner] * directions + decays[:, sampled.owner] * sampled.weights[:-1]
    total = np.linalg.norm(sampled.changes)
    return float(np.linalg.norm(sampled.changes + made) / total) if total else np.inf


def _rates_and_decays(sampled: Sampled, directions: Values) -> tuple[Values, Values]:
    """Of each step and tensor by least squares; no decay where the entries cannot tell it from the rate."""
    changes, weights = sampled.changes, sampled.weights[:-1]
    dd, dw, ww, dc, wc = (
        _per_tensor(sampled, one)
        for one in (
            *(directions**2, directions * weights, weights**2),
            *(directions * changes, weights * changes),
        )
    )
    determinant = dd * ww - dw**2
    told = determinant > 1e-6 * dd * ww
    safe, alone = np.where(told, determinant, 1.0), -dc / _never_zero(dd)
    rates = np.where(told, -(dc * ww - wc * dw) / safe, alone)
    decays = np.where(told, -(wc * dd - dc * dw) / safe, 0.0)
    return rates, decays


def _per_tensor(sampled: Sampled, values: Values) -> Values:
    """Sums over the entries of each tensor."""
    starts = np.flatnonzero(np.diff(sampled.owner, prepend=-1))
    sums: Values = np.add.reduceat(values, starts, axis=-1)
    return sums


def _grouped(sampled: Sampled, directions: Values) -> tuple[Values, Values, float]:
    """Rates of each step and tensor and the decay of each tensor, where one course of the rate serves all of them."""
    rates, decays = _rates_and_decays(sampled, directions)
    sizes = _per_tensor(sampled, directions**2)
    course = (rates * sizes).sum(axis=1) / np.maximum(sizes.sum(axis=1), TINY)
    factor, decay = (
        _alike(_median(values / _never_zero(course)[:, None], sizes > 0), share)
        for values, share in ((rates, SAME_RATE), (decays, SAME_DECAY))
    )
    moves = factor != 0
    course = _median((rates / _never_zero(factor))[:, moves].T, (sizes > 0)[:, moves].T)

    def left_over(decay: Values) -> float:
        pulls = decay[sampled.owner] * sampled.weights[:-1]
        made = course[:, None] * (factor[sampled.owner] * directions + pulls)
        return float(np.linalg.norm(sampled.changes + made) / np.linalg.norm(sampled.changes))

    decay, none = np.maximum(decay, 0.0), np.zeros_like(decay)
    if left_over(decay) > DECAY_EXPLAINS * left_over(none):
        decay = none
    return course[:, None] * factor, decay / _never_zero(factor), left_over(decay)


def _never_zero(values: Values) -> Values:
    return np.where(values == 0, 1.0, values)


def _median(values: Values, counts: NDArray[np.bool_]) -> Values:
    """Of the steps (rows) that count; 0 where none does."""
    counted = np.where(counts, values, np.nan)
    counted[:, ~counts.any(axis=0)] = 0.0
    middle: Values = np.nanmedian(counted, axis=0)
    return middle


def _alike(values: Values, share: float) -> Values:
    """The values that agree with one another are made the same: the one in their middle."""
    alike, left = np.empty_like(values), np.ones(len(values), bool)
    while left.any():
        one = values[left][0]
        near = left & (np.abs(values - one) <= share * np.maximum(np.abs(values), abs(one)))
        alike[near] = np.median(values[near])
        left &= ~near
    return alike


def _groups_of(
    names: tuple[str, ...], rates: Values, decays: Values, own: Mapping[str, Any]
) -> tuple[list[list[str]], list[list[dict[str, Any]]]]:
    """Tensors that share rate and decay; those that never move are in none."""
    groups: dict[tuple[float, float], list[int]] = {}
    for place in range(len(names)):
        if rates[:, place].any():
            groups.setdefault((float(rates[0, place]), float(decays[place])), []).append(place)
    settings = [
        [
            {"lr": float(of_step[places[0]]), "weight_decay": decay, **own}
            for (_, decay), places in groups.items()
        ]
        for of_step in rates
    ]
    return [[names[place] for place in places] for places in groups.values()], settings
