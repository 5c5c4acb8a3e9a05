"""Batches: what `DataLoader` iterators give, and how long the script waited for them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import BatchFetched


def install(patches: Patches) -> None:
    patches.replace(dataloader._BaseDataLoaderIter, "__next__", _next)


def _next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or not hub.attentive:
            return original(self)
        begin = time.perf_counter()
        batch = original(self)
        hub.emit(_fetched, self, batch, time.perf_counter() - begin)
        return batch

    return __next__


def _fetched(iterator: Any, batch: Any, seconds: float) -> BatchFetched:
    return BatchFetched(batch, seconds, _length(iterator))


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except (TypeError, NotImplementedError):  # a stream has no end that it knows of
        return None
