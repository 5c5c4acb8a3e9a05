"""Optimizers as scripts write them: some whose copy is closed, and traps whose step reaches outside of it."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

SCALE = 0.5
CALLS = [0]
LOG: dict[str, int] = {}
NOISE = torch.Generator()


def halved(update: Tensor) -> Tensor:
    return update * SCALE


def counted(update: Tensor) -> Tensor:
    CALLS[0] += 1
    return update


def tallied(update: Tensor) -> Tensor:
    tallied.calls = getattr(tallied, "calls", 0) + 1  # type: ignore[attr-defined]
    return update


def logged(function):
    def wrapper(self, closure=None):
        LOG["steps"] = LOG.get("steps", 0) + 1
        return function(self, closure)

    return wrapper


class Rule(Optimizer):
    """Settings that the others share."""

    def __init__(self, params, lr: float = 0.01, **more) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.01, **more})

    def pairs(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    yield group, p

    def step(self, closure=None):
        for group, p in self.pairs():
            p.data.add_(p.grad, alpha=-group["lr"])


# -- closed: a deep copy takes the same step ------------------------------------------------------------


class Lion(Rule):
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                first, second = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = state["exp_avg"] * first + p.grad * (1 - first)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].mul_(second).add_(p.grad, alpha=1 - second)
        return loss


class OldSuper(Lion):
    def step(self, closure=None):
        return super(OldSuper, self).step(closure)  # noqa: UP008


class Counting(torch.optim.SGD):
    """A list, a number and a tensor of its own, and torch's step below."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr, momentum=0.9)
        self.history: list[int] = []
        self.steps = 0
        self.total = torch.zeros(())

    def step(self, closure=None):
        self.history.append(self.steps)
        self.steps += 1
        self.total += 1
        return super().step(closure)


class BareSubclass(torch.optim.AdamW):
    pass


class Warmed(torch.optim.Adam):
    """A method of torch's, overridden: the step calls it."""

    def _init_group(self, group, *lists):
        group["lr"] = min(group["lr"] * 1.5, 0.05)
        return super()._init_group(group, *lists)


class OwnList(Rule):
    def __init__(self, params, lr: float = 0.1) -> None:
        self.mine = list(params)
        super().__init__(self.mine, lr)

    @torch.no_grad
    def step(self, closure=None):
        rate = self.param_groups[0]["lr"]
        norm = torch.stack([p.grad.norm() for p in self.mine if p.grad is not None]).norm()
        for p in self.mine:
            if p.grad is not None:
                p -= halved(p.grad) * (rate / max(1.0, norm.item()))


class Masters(Rule):
    """Master copies kept beside."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.master = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}

    @torch.no_grad()
    def step(self, closure=None):
        for p, kept in self.master.items():
            if p.grad is not None and p.requires_grad:
                kept.add_(p.grad, alpha=-self.param_groups[0]["lr"])
                p.copy_(kept)


class Averaged(Rule):
    """An exponential average of the weights inside the optimizer, and weights replaced instead of written to."""

    def step(self, closure=None):
        for group, p in self.pairs():
            mean = self.state[p].setdefault("ema", p.data.clone())
            p.data = p.data - group["lr"] * p.grad.data
            mean.lerp_(p.data, 0.1)
            p.data.lerp_(mean, 0.05)


class Centralised(Rule):
    """Gradient centralisation, written into the gradient itself."""

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in self.pairs():
            if p.dim() > 1:
                p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))
            p.add_(p.grad, alpha=-group["lr"])


class Rooted(Rule):
    """Shampoo-like: inverse fourth roots of the gradients' covariances."""

    @staticmethod
    def inverse_root(matrix: Tensor, power: float) -> Tensor:
        values, vectors = torch.linalg.eigh(matrix)
        return vectors @ torch.diag(values.clamp(min=1e-6).pow(-1 / power)) @ vectors.T

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in self.pairs():
            gradient, state = p.grad, self.state[p]
            if gradient.dim() != 2:
                p.add_(gradient, alpha=-group["lr"])
                continue
            if "left" not in state:
                state["left"] = torch.eye(p.shape[0], dtype=p.dtype, device=p.device)
                state["right"] = torch.eye(p.shape[1], dtype=p.dtype, device=p.device)
            state["left"] += gradient @ gradient.T
            state["right"] += gradient.T @ gradient
            left, right = self.inverse_root(state["left"], 4), self.inverse_root(state["right"], 4)
            p.add_(left @ gradient @ right, alpha=-group["lr"])


class Foreach(Rule):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in weights]
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, gradients, alpha=-group["lr"] * math.sqrt(2))


CLOSED = (
    *(Lion, OldSuper, Counting, BareSubclass, Warmed, OwnList, Masters, Averaged, Centralised),
    *(Rooted, Foreach),
)


# -- open: stepping a copy would reach the script --------------------------------------------------------


class Lookahead(Rule):
    def __init__(self, params) -> None:
        super().__init__(params)
        self.base = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1)

    def step(self, closure=None):
        self.base.step()


class Langevin(Rule):
    def step(self, closure=None):
        for _, p in self.pairs():
            p.data.add_(torch.randn_like(p), alpha=1e-3)


class Drawing(Rule):
    def step(self, closure=None):
        for _, p in self.pairs():
            p.data.add_(p.data.clone().normal_())


class Leaky(Rule):
    """It draws its slopes at random, though its name does not say so."""

    def step(self, closure=None):
        for _, p in self.pairs():
            p.data.add_(F.rrelu(p.grad, training=True))


class Dropping(Rule):
    def step(self, closure=None):
        for _, p in self.pairs():
            p.data.sub_(torch.dropout(p.grad, 0.5, True))


class Empty(Rule):
    def step(self, closure=None):
        for _, p in self.pairs():
            p.data.sub_(torch.empty_like(p))


class HasGenerator(Rule):
    def __init__(self, params) -> None:
        super().__init__(params)
        self.noise = torch.Generator()


class GlobalGenerator(Rule):
    def step(self, closure=None):
        return NOISE.get_state()


class Stdlib(Rule):
    def step(self, closure=None):
        for group, p in self.pairs():
            p.data.add_(p.grad, alpha=-group["lr"] * random.random())


class Numpy(Rule):
    def step(self, closure=None):
        for group, p in self.pairs():
            p.data.add_(p.grad, alpha=-group["lr"] * float(np.random.rand()))


class ClassList(Rule):
    history: list[int] = []  # noqa: RUF012

    def step(self, closure=None):
        self.history.append(1)


class ClassCount(Rule):
    count = 0

    def step(self, closure=None):
        ClassCount.count += 1


class ClassByType(Rule):
    count = 0

    def step(self, closure=None):
        self.__class__.count += 1


class GlobalList(Rule):
    def step(self, closure=None):
        CALLS[0] += 1


class GlobalNumber(Rule):
    def step(self, closure=None):
        global SCALE
        SCALE = SCALE * 1.0


class CallsCounter(Rule):
    def step(self, closure=None):
        for group, p in self.pairs():
            p.data.add_(counted(p.grad), alpha=-group["lr"])


class FunctionAttribute(Rule):
    def step(self, closure=None):
        for group, p in self.pairs():
            p.data.add_(tallied(p.grad), alpha=-group["lr"])


class Decorated(Rule):
    @logged
    def step(self, closure=None):
        return None


class MutableDefault(Rule):
    def step(self, closure=None, seen=[]):  # noqa: B006
        seen.append(1)


class Printing(Rule):
    def step(self, closure=None):
        print("step")


class Importing(Rule):
    def step(self, closure=None):
        import torch.distributed  # noqa: F401


class ModuleAlias(Rule):
    def step(self, closure=None):
        library = torch
        library.counted = 1


class PatchesTensor(Rule):
    def step(self, closure=None):
        kind = torch.Tensor
        kind.grad = None


class PatchesFunction(Rule):
    def step(self, closure=None):
        function = halved
        function.data = [1]


class SetsDefault(Rule):
    def step(self, closure=None):
        torch.set_default_dtype(torch.float32)


class View(Rule):
    def __init__(self, params) -> None:
        super().__init__(params)
        self.flat = self.param_groups[0]["params"][0].data.view(-1)

    def step(self, closure=None):
        self.flat.add_(1)


class Slotted(Rule):
    __slots__ = ("kept",)

    def step(self, closure=None):
        self.kept = 1


class Dying(Rule):
    def __del__(self) -> None:
        CALLS[0] += 1


class Reading(Rule):
    """A property that counts how often it is read."""

    @property
    def rate(self) -> float:
        CALLS[0] += 1
        return 0.1

    def step(self, closure=None):
        for _, p in self.pairs():
            p.data.add_(p.grad, alpha=-self.rate)


class Sharpness(Rule):
    """SAM in one class: the first half of the rule is not in `step`."""

    @torch.no_grad()
    def first_step(self) -> None:
        for _, p in self.pairs():
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def step(self, closure=None):
        for group, p in self.pairs():
            if "old" in self.state[p]:
                p.data = self.state[p]["old"]
            p.add_(p.grad, alpha=-group["lr"])


class ScheduleFree(Rule):
    """Weights of training and of evaluation differ."""

    def eval(self) -> None:
        for _, p in self.pairs():
            p.data.lerp_(self.state[p]["z"], 0.1)


class EightBit(Rule):
    """Moments in eight bits."""

    def step(self, closure=None):
        for group, p in self.pairs():
            state = self.state[p]
            state["q"] = (p.grad * 100).clamp(-127, 127).to(torch.int8)
            p.data.add_(state["q"].float(), alpha=-group["lr"] / 100)


class Scripted(Rule):
    kernel = torch.jit.ignore

    def step(self, closure=None):
        self.kernel(halved)


OPEN = {
    Lookahead: "SGD in base",
    Langevin: "torch.randn_like",
    Drawing: "normal_",
    Leaky: "F.rrelu",
    Dropping: "torch.dropout",
    Empty: "torch.empty_like",
    HasGenerator: "Generator in noise",
    GlobalGenerator: "NOISE",
    Stdlib: "random.random",
    Numpy: "np.random.rand",
    ClassList: "history",
    ClassCount: "ClassCount",
    ClassByType: "__class__",
    GlobalList: "CALLS",
    GlobalNumber: "SCALE",
    CallsCounter: "CALLS",
    FunctionAttribute: "tallied|getattr",
    Decorated: "LOG",
    MutableDefault: "default argument",
    Printing: "print",
    Importing: "imports torch.distributed",
    ModuleAlias: "module torch",
    PatchesTensor: "may be a class",
    PatchesFunction: "may be a class or a function",
    SetsDefault: "torch.set_default_dtype",
    View: "view of other tensors in flat",
    Slotted: "__slots__",
    Dying: "__del__",
    Reading: "CALLS",
    Sharpness: "outside of step, in first_step",
    ScheduleFree: "outside of step, in eval",
    EightBit: "quantised",
    Scripted: "kernel",
}
