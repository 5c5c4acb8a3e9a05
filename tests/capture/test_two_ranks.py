"""Attached or not, two ranks train the same: losses, weights, random states and collectives issued, to the last one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from programs_of_ranks import TWO_RANKS
from scripts_of_capture import run_python, watched

from traindoctor.record import Record, open_record

# The ranks themselves give up after a minute without an answer; a launch takes seconds.
LIMIT = 300
CASES = ["tensor_parallel", "sequence_parallel", "ddp", "by_hand", "two_groups"]
# Importing torch's sharding takes as long as all of those.
SHARDED = ["fsdp", "dtensor", "compiled_ddp"]


def lines(folder: Path, cases: list[str], *, attached: bool) -> list[list[Any]]:
    """What both ranks wrote of each case."""
    out = folder / ("ours" if attached else "bare")
    out.mkdir()
    if attached:
        ended = watched(folder, "script.py", out.name, *cases, budget=30, timeout=LIMIT)
    else:
        ended = run_python(folder, "script.py", out.name, *cases, timeout=LIMIT)
    assert ended.status == 0, ended.err[-4000:]
    return [
        [json.loads(line) for line in (out / f"rank-{rank}").read_text().splitlines()]
        for rank in (0, 1)
    ]


def same_on_two_ranks(folder: Path, cases: list[str]) -> Record:
    (folder / "script.py").write_text(TWO_RANKS)
    bare, ours = (lines(folder, cases, attached=attached) for attached in (False, True))
    assert [[line[0] for line in rank] for rank in bare] == [cases, cases]
    assert ours == bare
    record = open_record(folder / "run")
    assert [rank.meta["rank"] for rank in record.ranks] == [0, 1]
    for rank in record.ranks:
        assert not [note.text for note in rank.notes if note.level == "fault"]
    return record


@pytest.mark.slow  # tests/field has programs of this kind
def test_a_run_that_communicates_is_the_same_run(tmp_path: Path) -> None:
    """Tensor and sequence parallel, DistributedDataParallel, gradients joined by hand, two process groups."""
    record = same_on_two_ranks(tmp_path, CASES)
    exam = record.exam("tape_gradient")
    assert exam is not None
    assert exam.done, exam.reason
    assert exam.values["difference"] <= 10 * exam.values["noise"]


@pytest.mark.slow
def test_a_sharded_run_is_the_same_run(tmp_path: Path) -> None:
    """FSDP2, tensor parallel by DTensor, a compiled DistributedDataParallel."""
    same_on_two_ranks(tmp_path, SHARDED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="SyncBatchNorm needs a CUDA device")
def test_synchronised_statistics_are_the_same_run(tmp_path: Path) -> None:
    same_on_two_ranks(tmp_path, ["sync_batch_norm"])
