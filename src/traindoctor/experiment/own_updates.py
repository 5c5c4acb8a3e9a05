"""Scripts that move their weights themselves: some weights and gradients of their first steps, for `own_rule`.

A step is a backward pass after which the weights have changed; no optimizer of torch's takes part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from traindoctor.events import BackwardEnd
from traindoctor.experiment.own_rule import OwnRule, Sampled, Values, resting, rule_of
from traindoctor.ground.graph_walk import leaves_behind
from traindoctor.ground.names import Names
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.some_values import some_values

# Entries of one tensor. Most tensors give about so many, none more than twice as many.
ENTRIES = 8


class OwnUpdates:
    """`after_backward` at the end of each pass, `clipped` where the gradients were changed since; then `rule`."""

    def __init__(self, names: Names, *, steps: int) -> None:
        self.names = names
        self.steps = steps
        self.refusal: str | None = None
        self._tensors: dict[str, OurRef] = {}
        self._sizes: list[int] = []
        self._weights: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._resting: list[str] | None = None
        self.deserted = self.left_alone = 0
        """Tensors of the first steps that no gradient goes to any more; others that it goes to, and that rest."""
        self._others: list[tuple[OurRef, Tensor]] = []
        self._others_move = False

    @property
    def seen(self) -> int:
        return len(self._gradients)

    @property
    def enough(self) -> bool:
        return self.refusal is not None or self.seen >= self.steps

    def after_backward(self, event: BackwardEnd) -> None:
        if self.enough:
            return
        given = dict(zip(map(id, event.inputs or ()), event.results or ()))
        if not self._tensors:
            moved = [
                (name, p)
                for name, p in self.names.parameters()
                if p.requires_grad and (p.grad is not None or id(p) in given)
            ]
            self._tensors = {name: OurRef(p) for name, p in moved}
        self._sample(given)

    def look_again(self, event: BackwardEnd) -> None:
        """Once the first steps were seen: is what the update moves still what the gradient goes to?"""
        self._resting = [name for name in self.resting() if not self._moved_since(name)]
        leaves = event.inputs or leaves_behind(event.roots)
        known = [ref() for ref in self._tensors.values()]
        used = {id(leaf) for leaf in leaves}
        self.deserted = sum(id(tensor) not in used for tensor in known)
        before, self._others = self._others, []
        others = [leaf for leaf in leaves if not any(leaf is tensor for tensor in known)]
        same = []
        for leaf in others:
            values = some_values(leaf, ENTRIES)
            self._others.append((OurRef(leaf), values))
            same += [torch.equal(was, values) for ref, was in before if ref() is leaf]
        if same:  # a script may make new ones now and then: between two looks, or not
            self._others_move = self._others_move or not all(same)
            self.left_alone = 0 if self._others_move else len(same)

    def clipped(self) -> None:
        """The gradients of the latest pass as they are by now."""
        if self._gradients and not self.enough:
            self._weights.pop()
            self._gradients.pop()
            self._sample({})

    def _sample(self, given: dict[int, Tensor | None]) -> None:
        weights, gradients = [], []
        for ref in self._tensors.values():
            parameter = ref()
            if parameter is None or parameter.dtype not in (torch.float32, torch.float64):
                self.refusal = "its weights are replaced, or kept in half precision"
                return
            gradient = given.get(id(parameter), parameter.grad)
            if gradient is not None and gradient.is_sparse:
                self.refusal = "some of its gradients are sparse"
                return
            weights.append(some_values(parameter, ENTRIES))
            still = torch.zeros_like(weights[-1])
            gradients.append(still if gradient is None else some_values(gradient, ENTRIES))
        if len({one.device for one in weights}) > 1:
            self.refusal = "its weights lie on several devices"
            return
        if not weights:
            return
        self._sizes = [len(one) for one in weights]
        self._weights.append(torch.cat(weights))
        self._gradients.append(torch.cat(gradients))

    def resting(self) -> list[str]:
        """Tensors that have a gradient and were not moved, by any step that was seen."""
        if self._resting is None:
            sampled = self.sampled()
            self._resting = [] if sampled is None else resting(sampled)
        return self._resting

    def _moved_since(self, name: str) -> bool:
        """A later stage may train what the first one left alone."""
        place, parameter = list(self._tensors).index(name), self._tensors[name]()
        if parameter is None:
            return False
        was = self._weights[0].split(self._sizes)[place]
        return not torch.equal(was, some_values(parameter, ENTRIES).to(was))

    @property
    def num_tensors(self) -> int:
        return len(self._tensors)

    def rule(self) -> OwnRule | str:
        """What the steps that were seen follow, or why that is not known."""
        if self.refusal is not None:
            return self.refusal
        sampled = self.sampled()
        return "too few of its steps were seen" if sampled is None else rule_of(sampled)

    def sampled(self) -> Sampled | None:
        if len(self._weights) < 2:
            return None
        weights, gradients = (_on_host(of) for of in (self._weights, self._gradients))
        owner = np.repeat(np.arange(len(self._sizes)), self._sizes)
        return Sampled(weights, gradients[:-1], owner, tuple(self._tensors))


def _on_host(rows: Sequence[Tensor]) -> Values:
    return torch.stack(list(rows)).cpu().double().numpy()
