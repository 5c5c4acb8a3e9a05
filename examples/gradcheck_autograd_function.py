"""Test an autograd.Function: `traindoctor gradcheck examples/gradcheck_autograd_function.py:right`.

`wrong` forgets the 1/N of the mean; gradcheck says so: constant factor 6.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class CrossEntropy(torch.autograd.Function):
    """The mean over rows, in one pass; `mean` False in backward plants the usual mistake."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, mean: bool) -> Tensor:
        log_sum = logits.logsumexp(-1)
        ctx.save_for_backward(logits, targets, log_sum)
        ctx.mean = mean
        return (log_sum - logits.gather(1, targets[:, None])[:, 0]).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, log_sum = ctx.saved_tensors
        found = (logits - log_sum[:, None]).exp()
        found[torch.arange(len(targets)), targets] -= 1
        return found * (grad / len(targets) if ctx.mean else grad), None, None


def case(mean: bool) -> tuple[Any, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    inputs = torch.randn(6, 10), torch.randint(10, (6,))
    return (lambda logits, targets: CrossEntropy.apply(logits, targets, mean)), inputs


def right() -> Any:
    return case(mean=True)


def wrong() -> Any:
    return case(mean=False)


if __name__ == "__main__":
    import traindoctor

    for name, make in (("right", right), ("wrong", wrong)):
        print(name, traindoctor.gradcheck(*make()), sep="\n")
