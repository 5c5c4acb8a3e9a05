"""Every script of the corpus runs under traindoctor unmodified: same output, same status, steps recorded."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest
from scripts_of_capture import run_python, watched

from traindoctor.record import open_record

CORPUS = Path(os.environ.get("TRAINDOCTOR_CORPUS", Path(__file__).parents[2] / "corpus"))
SCRIPTS = sorted([*CORPUS.glob("cases/*.py"), *CORPUS.glob("twins/*.py")])

# Scripts print seconds, rates and memory among their losses: those may differ.
CLOCKS = re.compile(
    r"[\d.,]+ ?(ms|s|sec|seconds|tok/s|tokens/s|it/s|MB|MiB|GB|GiB)\b"
    r"|'?\w*(runtime|per_second|seconds|time|mem)\w*'?\s*[:=]?\s*'?[\d.e+-]+'?"
)


def same(text: str) -> str:
    return CLOCKS.sub("#", text)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_corpus_script_does_not_notice(tmp_path: Path, script: Path) -> None:
    shutil.copy(script, tmp_path / "script.py")
    began = time.perf_counter()
    bare = run_python(tmp_path, "script.py", timeout=900)
    middle = time.perf_counter()
    ours = watched(tmp_path, "script.py", timeout=1350)
    ended = time.perf_counter()
    assert ours.status == bare.status
    assert same(ours.out) == same(bare.out)
    record = open_record(tmp_path / "run")
    assert record.num_steps > 0
    assert len(record["loss.root"]) > 0
    assert not [note.text for note in record.notes if note.level == "fault"]
    # Everything included: imports, tapes, exams, the verdict. The first seconds are for imports.
    assert ended - middle < 1.5 * (middle - began) + 10.0
