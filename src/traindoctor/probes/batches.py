"""What the batch of a step was: its size, a fingerprint of it, and one that does not see the order of its rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from traindoctor.events import BatchFetched, Event, ForwardBegin, LossCalled, TokensEmbedded
from traindoctor.experiment.samples import (
    PATIENCE,
    HostCopy,
    arguments_with_rows,
    host_copy,
    thinned,
)
from traindoctor.ground.nested import tensors_in
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Row hashes remembered to say whether a row is new: 8 bytes each.
MOST_REMEMBERED = 200_000
# Tensors of a loader's batch that are compared with those of the batch before.
MOST_TENSORS = 4


class Batches:
    """`batch.tokens batch.rows batch.fingerprint batch.rowset batch.new_rows`.

    Read at the embedding call and at the loss op, where data are data whatever the script calls them;
    a model without token look-ups is read at its arguments.
    """

    name: ClassVar[str] = "batches"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        BatchFetched,
        ForwardBegin,
        TokensEmbedded,
        LossCalled,
    )

    def __init__(self) -> None:
        self._inputs: list[HostCopy] = []
        self._arguments: list[HostCopy] = []
        self._targets: list[HostCopy] = []
        self._waiting: list[tuple[int, list[HostCopy], list[HostCopy], list[HostCopy]]] = []
        self._seen: set[int] = set()
        self._num_batches = 0
        self._told = True
        self._fetched: dict[int | None, int] = {}
        """By the length of a loader: a crc of what it gave last."""
        self._again: list[bool] = []
        """Of what loaders gave in this step: the same as before?"""

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BatchFetched):
            self._compare(event)
        match event:
            case BatchFetched(num_batches=int(number)) if number > self._num_batches:
                # The training loader is the larger one; the fact is written with the step.
                self._num_batches, self._told = number, False
            case ForwardBegin(wants_grad=True):
                if not self._targets and len(self._arguments) < 8:
                    for tensor in arguments_with_rows(event.args, event.kwargs):
                        self._arguments.append(host_copy(thinned(tensor)))
            case TokensEmbedded(wants_grad=True):
                if len(self._inputs) < 64:
                    self._inputs.append(host_copy(event.index))
            case LossCalled(wants_grad=True):
                if len(self._targets) < 16 and event.target.ndim > 0:
                    self._targets.append(host_copy(thinned(event.target)))

    def _compare(self, event: BatchFetched) -> None:
        """A loader that gives a batch twice in a row: workers that draw alike, or all give the whole data."""
        tensors = [t for t in islice(tensors_in(event.batch), MOST_TENSORS) if not t.is_cuda]
        crc = 0
        for tensor in tensors:
            crc = zlib.crc32(np.ascontiguousarray(host_copy(thinned(tensor)).read()).tobytes(), crc)
        if crc:
            self._again.append(self._fetched.get(event.num_batches) == crc)
            self._fetched[event.num_batches] = crc

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._again:
            record.scalar("loader.again", step, sum(self._again) / len(self._again))
            self._again = []
        if not self._told:
            record.fact("loader.batches", self._num_batches)
            self._told = True
        if self._inputs or self._arguments:
            self._waiting.append((step, self._inputs, self._arguments, self._targets))
        self._inputs, self._arguments, self._targets = [], [], []
        while self._waiting:
            at, inputs, arguments, targets = self._waiting[0]
            late = any(copy.late for copy in (*inputs, *arguments, *targets))
            if late and step - at < PATIENCE:
                return
            self._waiting.pop(0)
            self._write(at, record, inputs, arguments, targets)

    def _write(
        self,
        step: int,
        record: RecordWriter,
        inputs: list[HostCopy],
        arguments: list[HostCopy],
        targets: list[HostCopy],
    ) -> None:
        tokens = [copy.read() for copy in inputs if copy.read().ndim and not copy.positions]
        data = tokens or [copy.read() for copy in arguments]
        if not data:
            return
        answers = [copy.read() for copy in targets]
        fingerprint = 0
        for array in (*data, *answers):
            fingerprint = zlib.crc32(np.ascontiguousarray(array).tobytes(), fingerprint)
        hashes = sorted(row_hashes(data, answers))
        new = [h for h in hashes if h not in self._seen]
        if len(self._seen) < MOST_REMEMBERED:
            self._seen.update(new)
        record.scalars(
            step,
            {
                "batch.tokens": float(sum(a.size for a in tokens)),
                "batch.rows": float(len(hashes)),
                "batch.fingerprint": float(fingerprint),
                "batch.rowset": float(zlib.crc32(np.array(hashes, dtype=np.uint64).tobytes())),
                "batch.new_rows": len(new) / max(1, len(hashes)),
            },
        )


def row_hashes(data: list[NDArray[Any]], targets: list[NDArray[Any]]) -> Iterator[int]:
    """One hash per example: its row of every input, and of the target where that has as many rows."""
    by_rows: dict[int, list[list[bytes]]] = {}
    for array in data:
        rows = len(array)
        by_rows.setdefault(rows, []).append([row.tobytes() for row in np.ascontiguousarray(array)])
    for target in targets:
        if len(target) in by_rows:
            rows_of = [np.asarray(row).tobytes() for row in np.ascontiguousarray(target)]
            by_rows[len(target)].append(rows_of)
    for tables in by_rows.values():
        for parts in zip(*tables):
            yield hash_bytes(b"|".join(parts))


def hash_bytes(raw: bytes) -> int:
    """63 bits from two crc32: Python's own hash differs from process to process."""
    return (zlib.crc32(raw) << 31) ^ zlib.crc32(raw, 0x5BD1E995)
