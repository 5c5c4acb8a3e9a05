"""An optimizer of ours over tensors of ours: it takes the script's step, and no hook of the script hears of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from traindoctor.errors import ReplayError
from traindoctor.ground.quiet import quiet

# What torch's optimizers call their means of gradients, and of squares.
FIRST_MOMENTS = frozenset("exp_avg momentum_buffer exp_inf grad_avg mu".split())
SECOND_MOMENTS = frozenset("exp_avg_sq max_exp_avg_sq square_avg sum".split())


class Stepper:
    """`tensors[i][j]` stands for parameter j of group i, and is what `step` changes."""

    def __init__(
        self,
        optimizer: Optimizer,
        rule: Callable[..., Any],
        tensors: Sequence[Sequence[Tensor]],
        leaves: Sequence[Sequence[Tensor]],
        *,
        grad_mode: bool = False,
        can_forget: bool = True,
    ) -> None:
        """`leaves`: the optimizer's own parameters, over the memory of the tensors; `rule`: step without hooks."""
        self.optimizer = optimizer
        self.tensors = tensors
        self._rule = rule
        self._leaves = leaves
        self._grad_mode = grad_mode
        self._can_forget = can_forget

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def forget(self) -> None:
        """A fresh state, as on the first step."""
        if not self._can_forget:
            kind = type(self.optimizer).__name__
            raise ReplayError(f"{kind} may keep more than its state before the first step")
        self.optimizer.state = defaultdict(dict)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """The state of gradients that had been longer by the factor all along."""
        for state in self.optimizer.state.values():
            # RMSprop gathers what is divided already.
            divided = "square_avg" in state
            for key, value in state.items():
                power = 1 if key in FIRST_MOMENTS else 2 if key in SECOND_MOMENTS else 0
                if divided and key == "momentum_buffer":
                    continue
                if power and isinstance(value, Tensor):
                    value.mul_(factor**power)

    def step(self, gradients: Sequence[Sequence[Tensor | None]]) -> None:
        """Takes copies of the gradients: some rules write into theirs."""
        pairs = [pair for groups in zip(self.tensors, self._leaves) for pair in zip(*groups)]
        flat = [gradient for group in gradients for gradient in group]
        with quiet(), torch.no_grad():
            for (tensor, leaf), gradient in zip(pairs, flat):
                leaf.data = tensor.detach()
                leaf.grad = None if gradient is None else gradient.detach().to(tensor, copy=True)
            try:
                with torch.set_grad_enabled(self._grad_mode):
                    self._rule(self.optimizer)
            except Exception as error:
                kind = type(self.optimizer).__name__
                raise ReplayError(
                    f"{kind}.step could not be repeated on copies: {error}"
                ) from error
            finally:
                for tensor, leaf in pairs:
                    leaf.grad = None
                    if leaf.data_ptr() != tensor.data_ptr():  # `p.data = ...` instead of `p.add_`
                        tensor.copy_(leaf)
