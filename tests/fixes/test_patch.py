"""Diffs are data: what is made applies, what moved is found, what is none is refused in a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traindoctor.errors import TraindoctorError
from traindoctor.fixes import patch

BEFORE = "".join(f"line {n}\n" for n in range(30))
AFTER = BEFORE.replace("line 5\n", "line five\n").replace("line 20\n", "")


@given(
    st.lists(st.sampled_from(["a", "b", "", "-- c", "\x0c", "é"])),
    st.lists(st.sampled_from(["a", "b", "", "++ d"])),
)
def test_what_is_made_applies(a: list[str], b: list[str]) -> None:
    before, after = "\n".join(a), "\n".join(b)
    if before != after:
        assert patch.applied(patch.read(patch.made("x.py", before, after)), before) == after


def test_a_change_that_moved_is_found_in_one_place_only() -> None:
    change = patch.read(patch.made("x.py", BEFORE, AFTER))
    assert patch.applied(change, "new\nlines\n" + BEFORE) == "new\nlines\n" + AFTER
    with pytest.raises(
        TraindoctorError, match=r"does not apply to x\.py: the lines that its change 1"
    ):
        patch.applied(change, "new\n" + BEFORE + BEFORE)
    with pytest.raises(TraindoctorError, match="does not apply"):
        patch.applied(change, BEFORE.replace("line 6", "line six"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_applies_it_too(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(BEFORE)
    (tmp_path / "p.diff").write_text(patch.made("x.py", BEFORE, AFTER))
    subprocess.run(["git", "apply", "p.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "x.py").read_text() == AFTER


def test_what_git_writes_is_read() -> None:
    head = "diff --git a/dir/x.py b/dir/x.py\nindex 123..456 100644\n"
    text = head + patch.made("dir/x.py", BEFORE, AFTER).replace("\n", "\r\n")
    change = patch.read(text)
    assert change.file == "dir/x.py"
    assert patch.applied(change, BEFORE) == AFTER


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a unified diff"),
        ("print(1)\n", "is not a unified diff"),
        ("--- a/x.py\n+++ b/x.py\n", "is not a unified diff"),
        ("--- a/x.py\n+++ b/x.py\n@@ nonsense\n", "is no hunk header"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n", "ends in the middle"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1,1 +1,1 @@\n-a\n?b\n", "inside a change"),
        ("--- a/x.py\n+++ b/x.py\n@@ -1,1 +1,2 @@\n a\n-b\n+c\n", "not as long as it says"),
        ("--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-a\n+b\n", r"names x\.py and y\.py"),
        ("--- /dev/null\n+++ b/y.py\n@@ -0,0 +1 @@\n+b\n", "names /dev/null and"),
        (
            "rename from x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n",
            "more than change lines",
        ),
    ],
)
def test_what_is_no_patch_of_one_file_is_refused(text: str, said: str) -> None:
    with pytest.raises(TraindoctorError, match=said):
        patch.read(text, "p.diff")
