"""The record: the one place where measuring and judging meet."""

from traindoctor.record.ranks import (
    Agreement,
    agreement,
    comparable,
    held_by_all,
    overwritten,
)
from traindoctor.record.reader import StoredRecord, open_record
from traindoctor.record.schema import (
    FORMAT,
    ExamResult,
    LayerSeries,
    Note,
    Record,
    Series,
    make_record,
)
from traindoctor.record.writer import RecordWriter, record_path

__all__ = [
    "FORMAT",
    "Agreement",
    "ExamResult",
    "LayerSeries",
    "Note",
    "Record",
    "RecordWriter",
    "Series",
    "StoredRecord",
    "agreement",
    "comparable",
    "held_by_all",
    "make_record",
    "open_record",
    "overwritten",
    "record_path",
]
