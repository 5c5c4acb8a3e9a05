"""Is the loss what the step goes down on? Parts that are held fixed (`detach`, `no_grad`) move with the weights all the same.

A codebook's distance to its encoder, a value's to its own estimate of the next one: each step changes the target as well, so
that the number that is called the loss may rise while all goes well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from traindoctor.errors import ReplayError
from traindoctor.tape.execute import replay

if TYPE_CHECKING:
    from traindoctor.tape.tape import StepTape


def held_fixed(tape: StepTape) -> float:
    """How much of the loss's whole gradient the step leaves out, or has too much: the difference over the gradient used."""
    if held_fixed not in tape.memo:
        tape.memo[held_fixed] = _left_out(tape)
    return tape.memo[held_fixed]  # type: ignore[no-any-return]


def _left_out(tape: StepTape) -> float:
    roots = [root.ref for root in tape.roots if root.ref is not None]
    if not any(op.kind == "detach" or not op.grad_enabled for op in tape.needed(roots)):
        return 0.0
    used = replay(tape, gradients=True).gradients()
    try:
        whole = replay(tape, gradients=True, look_through=True).gradients()
    except ReplayError:  # a buffer that the step writes into twice has no derivative
        return 0.0
    apart = size = 0.0
    for name, gradient in used.items():
        full = whole.get(name)
        mine = torch.zeros(()) if gradient is None else gradient.detach().double().cpu()
        other = torch.zeros(()) if full is None else full.detach().double().cpu()
        apart += float((mine - other).square().sum())
        size += float(mine.square().sum())
    return (apart / size) ** 0.5 if size else 0.0
