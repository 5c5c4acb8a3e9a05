"""Who may read a record, and arguments that are no text: modes, umasks, bytes of a foreign encoding."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from traindoctor.capture.folders import claim, new_folder
from traindoctor.private_files import make_private_file, make_private_folder
from traindoctor.record import RecordWriter, open_record
from traindoctor.record.text import readable

pytestmark = pytest.mark.skipif(os.name != "posix", reason="this system has no such modes")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
def test_only_the_owner_reads_a_record(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        folder = new_folder("run", str(tmp_path / "run"))
        writer = RecordWriter(claim(folder, 0))
        writer.scalar("loss.root", 0, 1.0)
        writer.flush()
        files = sorted(folder.iterdir())
        modes = {file.name: mode(file) for file in files}
        writer.close()
    finally:
        os.umask(old)
    assert mode(folder) == 0o700
    assert modes == dict.fromkeys(
        ("record-0.sqlite", "record-0.sqlite-shm", "record-0.sqlite-wal"), 0o600
    )


def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    make_private_folder(folder)
    assert mode(folder) == 0o755
    file = folder / "file"
    file.touch()
    file.chmod(0o644)
    assert not make_private_file(file)
    assert mode(file) == 0o644


def test_a_file_in_the_way_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "run")


def test_a_link_in_the_place_of_a_record_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "record-0.sqlite").symlink_to(tmp_path / "elsewhere")
    assert not make_private_file(tmp_path / "record-0.sqlite")
    assert not (tmp_path / "elsewhere").exists()


def test_bytes_that_are_no_text_are_recorded(tmp_path: Path) -> None:
    odd = os.fsdecode(b"\xff\x1b[31m")
    folder = tmp_path / os.fsdecode(b"run-\xfe")
    writer = RecordWriter(folder, meta={"imported": odd})
    writer.fact("script", {"path": odd, "argv": [odd, "\ud800"], odd: 1})
    writer.scalar(odd, 0, 1.0)
    writer.layers(odd, 0, [odd], [1.0])
    writer.note("info", odd)
    writer.close()
    assert writer.failed is None
    record = open_record(folder)
    shown = "\\xff\\x1b[31m"
    assert record.fact("script") == {"path": shown, "argv": [shown, "\\ud800"], shown: 1}
    assert record.names == record.layer_names == (shown,)
    assert record.notes[0].text == shown


def test_readable_leaves_text_alone() -> None:
    for text in ("loss 2.5", "größer \u2192 π", "two\nlines\tand a tab", "", "\U0001f600"):
        assert readable(text) == text
    assert readable("\0\x7f\u202e") == "\\x00\\x7f\\u202e"
