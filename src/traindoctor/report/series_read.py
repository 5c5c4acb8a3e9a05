"""Which series a finding rests on: those that its check reads when it judges the record once more.

Nothing has to be declared, and a cause that is added later is followed like the others.
"""

from traindoctor.checks import BY_SLUG
from traindoctor.errors import RecordError
from traindoctor.record import LayerSeries, Record, Series


class Followed(Record):
    """A record that notes which of its series were asked for and had numbers."""

    def __init__(self, record: Record) -> None:
        super().__init__(
            exams=record.exam_results, notes=record.notes, meta=record.meta, ranks=record.ranks
        )
        self.facts = record.facts
        self.read: dict[str, None] = {}
        self._record = record

    @property
    def names(self) -> tuple[str, ...]:
        return self._record.names

    @property
    def layer_names(self) -> tuple[str, ...]:
        return self._record.layer_names

    @property
    def num_steps(self) -> int:
        return self._record.num_steps

    def get(self, name: str) -> Series | None:
        found = self._record.get(name)
        if found is not None and len(found):
            self.read[name] = None
        return found

    def layers(self, name: str) -> LayerSeries | None:
        found = self._record.layers(name)
        if found is not None and len(found):
            self.read[name] = None
        return found


def series_read(cause: str, record: Record) -> list[str]:
    """In the order in which they were first asked for; empty for a cause of another version."""
    if cause not in BY_SLUG:
        return []
    followed = Followed(record)
    try:
        BY_SLUG[cause](followed)
    except RecordError:
        raise
    except Exception:  # a broken check is told with the verdict; what it has read so far counts
        pass
    return list(followed.read)
