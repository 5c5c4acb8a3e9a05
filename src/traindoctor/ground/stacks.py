"""What torch keeps on stacks and counts by nesting, as it was: an exam that is stopped anywhere may leave more there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from traindoctor.ground import quiet
from traindoctor.ground.mode_stack import stack_height
from traindoctor.ground.torch_private import (
    num_dispatch_modes,
    pop_dispatch_mode,
    pop_function_mode,
    pop_saved_hooks,
    push_saved_hooks,
    saved_hooks_allowed,
    top_saved_hooks,
)


@contextmanager
def stacks_restored() -> Iterator[None]:
    """Function and dispatch modes, hooks on saved tensors, autocast's nesting, our own switch.

    Contexts give these back themselves when they are left, but not where an exception from outside meets them on the way.
    """
    functions, dispatches = stack_height(), num_dispatch_modes()
    hooks, nesting = _num_saved_hooks(), _autocast_nesting()
    depth, here = quiet._depth, quiet._mine.depth
    try:
        yield
    finally:
        for _ in range(stack_height() - functions):
            pop_function_mode()
        for _ in range(num_dispatch_modes() - dispatches):
            pop_dispatch_mode()
        for _ in range(_num_saved_hooks() - hooks):
            pop_saved_hooks()
        for _ in range(_autocast_nesting() - nesting):
            torch.autocast_decrement_nesting()
        quiet._depth, quiet._mine.depth = depth, here


def _autocast_nesting() -> int:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return int(nesting)


def _num_saved_hooks() -> int:
    """Torch tells of the uppermost pair only: all are removed, counted and put back."""
    if not saved_hooks_allowed():
        return 0
    pairs = []
    while (pair := top_saved_hooks(True)) is not None:
        pairs.append(pair)
        pop_saved_hooks()
    for pack, unpack in reversed(pairs):
        push_saved_hooks(pack, unpack)
    return len(pairs)
