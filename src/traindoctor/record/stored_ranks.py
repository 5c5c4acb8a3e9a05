"""The records of a run: one file per rank in its folder. A thousand are more than a process may hold open: each is opened
when its turn comes and closed after it, but for the first."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from traindoctor.errors import RecordError
from traindoctor.plain_files import is_there
from traindoctor.record.reader import StoredRecord
from traindoctor.record.schema import Record


class StoredRanks(Sequence[StoredRecord]):
    """In order of ranks. What the loop over it gives is open until the next turn; what is asked for by number stays so."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._first = self._opened(self._files[0])

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredRecord]: ...
    def __getitem__(self, index: int | slice) -> StoredRecord | list[StoredRecord]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        file = self._files[index]
        return self._first if file == self._files[0] else self._opened(file)

    def __iter__(self) -> Iterator[StoredRecord]:
        yield self._first
        for file in self._files[1:]:
            record = self._opened(file)
            try:
                yield record
            finally:
                record.close()

    def _opened(self, file: Path) -> StoredRecord:
        record = StoredRecord(file)
        record.ranks = self
        return record


RECORD_NAME = re.compile(r"record-(\d{1,9})\.sqlite")


def record_files(folder: Path) -> list[Path]:
    """The records of a run folder in order of ranks; files of other names are not records."""
    try:
        found = [(m, file) for file in folder.iterdir() if (m := RECORD_NAME.fullmatch(file.name))]
    except OSError as error:
        raise RecordError(f"cannot look into {folder}: {error.strerror}") from error
    return [file for _, file in sorted(found, key=lambda pair: int(pair[0][1]))]


def open_record(run: Path | str) -> Record:
    """The record of a run folder (rank 0's, with every rank's in `.ranks`) or of one file."""
    path = Path(run)
    if not is_there(path):
        raise RecordError(f"there is nothing at {path}: give the folder of a run")
    if not path.is_dir():
        return StoredRecord(path)
    files = record_files(path)
    if not files:
        raise RecordError(f"{path} holds no record: give the folder of a run")
    return StoredRanks(files)[0]
