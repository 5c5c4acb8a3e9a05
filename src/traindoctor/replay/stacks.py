"""What torch keeps on stacks and counts by nesting, as it was: an exam that is stopped anywhere may leave more there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import _pop_mode
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

from traindoctor.replay import quiet
from traindoctor.replay.mode_stack import stack_height


@contextmanager
def stacks_restored() -> Iterator[None]:
    """Function and dispatch modes, hooks on saved tensors, autocast's nesting, our own switch.

    Contexts give these back themselves when they are left, but not where an exception from outside meets them on the way.
    """
    functions, dispatches = stack_height(), torch._C._len_torch_dispatch_stack()
    hooks, nesting = _num_saved_hooks(), _autocast_nesting()
    depth, here = quiet._depth, quiet._mine.depth
    try:
        yield
    finally:
        for _ in range(stack_height() - functions):
            _pop_mode()
        for _ in range(torch._C._len_torch_dispatch_stack() - dispatches):
            _pop_dispatch_mode()
        for _ in range(_num_saved_hooks() - hooks):
            torch._C._autograd._pop_saved_tensors_default_hooks()
        for _ in range(_autocast_nesting() - nesting):
            torch.autocast_decrement_nesting()
        quiet._depth, quiet._mine.depth = depth, here


def _autocast_nesting() -> int:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return int(nesting)


def _num_saved_hooks() -> int:
    """Torch tells of the uppermost pair only: all are removed, counted and put back."""
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        return 0
    pairs = []
    while (pair := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        pairs.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    for pack, unpack in reversed(pairs):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    return len(pairs)
