"""Layer series at any zoom: coarse blocks are made once and kept, fine rows are read when looked at.

100 000 rows of 200 layers are 80 MB. Blocks of 32 rows with their extremes are 5 MB; a window of few rows
comes straight from the record by its index.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traindoctor.record import StoredRecord
from traindoctor.report.downsample import (
    HeatMap,
    Keep,
    chunks,
    layer_rows,
    layer_span,
    reduce_at,
    reduce_rows,
)

BLOCK = 32
# Up to so many rows are read from the record for one picture: about 15 ms with 200 layers.
FINE_ROWS = 3000


@dataclass
class Pyramid:
    """The blocks of one layer series of one record."""

    name: str
    _steps: list[NDArray[np.int64]] = field(default_factory=list)
    _high: list[NDArray[np.float32]] = field(default_factory=list)
    _low: list[NDArray[np.float32]] = field(default_factory=list)
    _bad: list[NDArray[np.bool_]] = field(default_factory=list)
    _next: int = 0  # first step that is in no block yet

    def refresh(self, record: StoredRecord) -> None:
        """Takes in whole blocks that came since; the rest waits for the block to be full."""
        for piece in chunks(record, self.name, rows=BLOCK * 128, start=self._next):
            whole = len(piece) // BLOCK * BLOCK
            if whole == 0:
                return
            starts = np.arange(0, whole, BLOCK)
            values, steps = piece.values[:whole], piece.steps[:whole]
            high = reduce_at(piece.layers, steps, values, starts, "max")
            low = reduce_at(piece.layers, steps, values, starts, "min")
            self._steps.append(high.steps)
            self._high.append(high.values)
            self._low.append(low.values)
            self._bad.append(high.bad)
            self._next = int(steps[-1]) + 1
        if len(self._steps) > 1:
            self._steps = [np.concatenate(self._steps)]
            self._high, self._low = [np.concatenate(self._high)], [np.concatenate(self._low)]
            self._bad = [np.concatenate(self._bad)]

    def view(
        self, record: StoredRecord, start: int, stop: int, columns: int, keep: Keep
    ) -> HeatMap:
        self.refresh(record)
        steps = self._steps[0] if self._steps else np.empty(0, np.int64)
        first = max(0, int(np.searchsorted(steps, start, side="right")) - 1)
        last = int(np.searchsorted(steps, stop, side="right"))
        if (last - first) * BLOCK <= FINE_ROWS:
            return reduce_rows(layer_rows(record, self.name, start=start, stop=stop), columns, keep)
        table = (self._high if keep == "max" else self._low)[0][first:last]
        count = last - first
        starts = np.linspace(0, count, min(count, columns) + 1).astype(np.int64)[:-1]
        layers = layer_span(record, self.name)[0]
        coarse = reduce_at(layers, steps[first:last], table, starts, keep)
        coarse.bad |= np.logical_or.reduceat(self._bad[0][first:last], starts, axis=0)
        return coarse
