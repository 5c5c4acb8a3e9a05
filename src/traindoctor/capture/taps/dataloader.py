"""Batches: what `DataLoader` iterators give, and how long the script waited for them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import dataloader

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import BatchFetched
from traindoctor.ground import torch_private

# Batches whose making is looked at.
LOOKED_AT = 6


def install(patches: Patches) -> None:
    patches.replace(dataloader._BaseDataLoaderIter, "__next__", _next)


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or not hub.attentive:
            return original(self)
        begin = time.perf_counter()
        with joining(self) as examples:
            batch = original(self)
        hub.emit(_fetched, self, batch, time.perf_counter() - begin, examples)
        return batch

    return __next__


@contextmanager
def joining(iterator: Any) -> Iterator[list[Any]]:
    """Fills a list with the examples that the script's function makes a batch of, in the first batches."""
    examples: list[Any] = []
    fetcher = torch_private.fetcher_of(iterator)
    if fetcher is None or hub.batches_looked_at >= LOOKED_AT:
        yield examples
        return
    hub.batches_looked_at += 1
    own = fetcher.collate_fn

    def heard(given: Any) -> Any:
        if isinstance(given, list):
            examples[:] = given  # it may sort the list itself
        return own(given)

    fetcher.collate_fn = heard
    try:
        yield examples
    finally:
        fetcher.collate_fn = own


def _fetched(iterator: Any, batch: Any, seconds: float, examples: list[Any]) -> BatchFetched:
    rows = len(examples) or torch_private.rows_of(iterator)
    return BatchFetched(batch, seconds, _length(iterator), rows, examples)


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except (TypeError, NotImplementedError):  # a stream has no end that it knows of
        return None
