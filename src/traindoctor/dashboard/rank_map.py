"""The heat map of all ranks, which a live page asks for again and again: a thousand records take seconds to read."""

import time
from dataclasses import dataclass, field
from typing import Any

from traindoctor.record import StoredRecord
from traindoctor.report.across_ranks import rank_maps
from traindoctor.report.downsample import HeatMap, Keep

# Reading the ranks may take this share of the time: the last picture stands for so many times as long as it took.
STANDS = 20


@dataclass
class RankMap:
    """The last picture of one series."""

    name: str
    _made: dict[tuple[Any, ...], tuple[float, HeatMap]] = field(default_factory=dict)

    def view(
        self, record: StoredRecord, start: int, stop: int, columns: int, keep: Keep
    ) -> HeatMap:
        asked = (start, stop, columns, keep)
        until, heat = self._made.get(asked, (0.0, None))
        began = time.monotonic()
        if heat is None or began > until:
            maps = rank_maps(
                record, [self.name], columns=columns, keep=keep, start=start, stop=stop
            )
            heat, now = maps[self.name], time.monotonic()
            self._made = {asked: (now + STANDS * (now - began), heat)}
        return heat
