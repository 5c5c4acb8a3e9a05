"""Hooks of ours take no numbers: the script's own hooks have the keys, in pickles too, that they would have without us."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.hooks import RemovableHandle

# Keys of one table must differ: the script's begin at 0.
FIRST = -(1 << 40)
_next = FIRST


@contextmanager
def own_handles() -> Iterator[None]:
    """Hooks that are registered inside have numbers of our own."""
    global _next
    kept, RemovableHandle.next_id = RemovableHandle.next_id, _next
    try:
        yield
    finally:
        _next, RemovableHandle.next_id = RemovableHandle.next_id, kept
