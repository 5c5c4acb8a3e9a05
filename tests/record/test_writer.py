"""A record is written cheaply, read while it grows, and survives whatever ends its writer."""

from __future__ import annotations

import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.errors import RecordError
from traindoctor.record import ExamResult, RecordWriter, StoredRecord, open_record, record_path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    for step in range(10):
        writer.scalar("loss.root", step, 1.0 / (step + 1))
        writer.layers("grad.rms", step, ["a", "b"], [step, math.nan])
    writer.fact("env", {"torch": "2"})
    writer.fact("env", {"torch": "3"})
    writer.exam(ExamResult("shift", 4, "done", {"match": 1.0}))
    writer.note("fault", "a probe failed")
    writer.close()
    assert [file.name for file in tmp_path.iterdir()] == ["record-0.sqlite"]  # fit to be copied
    record = open_record(tmp_path)
    assert record["loss.root"].values.tolist() == [1.0 / (step + 1) for step in range(10)]
    table = record.layers("grad.rms")
    assert table is not None
    assert table.medians()[0] == np.median(table.values[:, 0])
    assert np.isnan(table.medians()[1])  # without a warning on anybody's terminal
    assert table.layer("a").values.tolist() == list(range(10))
    assert np.isnan(table.layer("b").values).all()
    assert record.fact("env") == {"torch": "3"}
    assert record.exam("shift").values == {"match": 1.0}
    assert record.notes[0].text == "a probe failed"


@given(value=JSON)
@settings(max_examples=60, deadline=None)
def test_facts_keep_their_value(value: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    from traindoctor.record.text import readable
    from traindoctor.record.valid import from_json
    from traindoctor.record.writer import to_json

    def same(a: object, b: object) -> bool:
        if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
            return math.isnan(b)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            return {readable(k) for k in a} == b.keys() and all(
                same(a[k], b[readable(k)]) for k in a
            )
        # Characters that a terminal would obey are kept written out.
        return (readable(a) if isinstance(a, str) else a) == b

    if value in ("nan", "inf", "-inf"):
        return  # these three strings stand for the numbers JSON lacks
    assert same(value, from_json(to_json(value)))


def test_two_readers_while_it_grows(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.scalar("loss.root", 0, 1.0)
    writer.flush()
    readers = [StoredRecord(record_path(tmp_path)) for _ in range(2)]
    for step in range(1, 50):
        writer.scalar("loss.root", step, float(step))
        writer.flush()
        for reader in readers:
            reader.refresh()
            assert len(reader["loss.root"]) == step + 1
    writer.close()


def test_changed_layers_start_a_table_of_their_own(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    writer.layers("grad.rms", 0, ["a"], [1.0])
    writer.layers("grad.rms", 1, ["a", "b"], [1.0, 2.0])
    writer.layers("grad.rms", 2, ["a"], [3.0])
    writer.close()
    record = open_record(tmp_path)
    whole = record.layers("grad.rms")
    assert whole.steps.tolist() == [0, 1, 2]
    assert whole.layers == ("a", "b")
    np.testing.assert_array_equal(whole.values, [[1.0, np.nan], [1.0, 2.0], [3.0, np.nan]])
    assert record.layers("grad.rms#2").layers == ("a", "b")


def test_a_full_disk_ends_the_recording_only(tmp_path: Path) -> None:
    """A limit on file size stands for the disk: the write fails as it would there."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = RecordWriter(tmp_path)
    writer.scalar("loss.root", 0, 1.0)
    writer.flush()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, old[1]))
        for step in range(1, 60):
            writer.layers("grad.rms", step, [str(i) for i in range(2000)], np.ones(2000))
            writer.flush()
        assert writer.failed
        writer.scalar("loss.root", 1, 1.0)  # goes nowhere, costs nothing, raises nothing
        assert not writer._points
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert open_record(tmp_path)["loss.root"].values.tolist() == [1.0]


KILLED = """
import sys, time
from pathlib import Path
from traindoctor.record import RecordWriter
writer = RecordWriter(Path(sys.argv[1]))
print("ready", flush=True)
step = 0
while True:
    writer.scalar("clock", step, time.time())
    writer.layers("grad.rms", step, ["a", "b"], [step, step])
    step += 1
    time.sleep(0.001)
"""


@pytest.mark.parametrize(
    "instants", [4, pytest.param(50, marks=pytest.mark.slow)], ids=["some", "fifty"]
)
def test_killed_at_any_instant_it_opens(tmp_path: Path, instants: int) -> None:
    """At most two seconds are missing, and what is there is whole."""
    draw = random.Random(0)
    for number in range(instants):
        folder = tmp_path / str(number)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.0, 1.6))
        process.kill()
        killed = time.time()
        process.wait()
        process.stdout.close()
        record = open_record(folder)
        clock = record.get("clock")
        if clock is not None and len(clock):
            assert killed - clock.values[-1] < 2.0
            assert clock.steps.tolist() == list(range(len(clock)))
            assert len(record.layers("grad.rms")) >= 1


def test_a_record_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    import sqlite3

    RecordWriter(tmp_path).close()
    with sqlite3.connect(record_path(tmp_path)) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    database.close()
    with pytest.raises(RecordError, match="newer traindoctor"):
        open_record(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "record-0.sqlite"
    file.write_bytes(content)
    with pytest.raises(RecordError):
        open_record(tmp_path)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record"):
        open_record(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecordError, match="--out"):
        RecordWriter(tmp_path / "run")
