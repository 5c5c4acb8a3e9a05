"""The record: the one place where measuring and judging meet."""

from traindoctor.record.ranks import (
    Agreement,
    agreement,
    comparable,
    exchange_factors,
    held_by_all,
    medians_by_rank,
    overwritten,
    unlike_the_others,
)
from traindoctor.record.reader import StoredRecord
from traindoctor.record.schema import (
    FORMAT,
    ExamResult,
    LayerSeries,
    Note,
    Record,
    Series,
    make_record,
)
from traindoctor.record.stored_ranks import open_record
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
    "exchange_factors",
    "held_by_all",
    "make_record",
    "medians_by_rank",
    "open_record",
    "overwritten",
    "record_path",
    "unlike_the_others",
]
