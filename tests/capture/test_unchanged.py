"""With and without traindoctor a run gives the same losses, weights and random state, to the last bit."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import scripts_of_capture as scripts
from scripts_of_capture import run_python, watched

from traindoctor.record import Record, open_record

# name -> (script, its arguments, optimizer steps that must be recorded)
CASES = {
    "plain": (scripts.PLAIN, (), 30),
    "compiled-module": (scripts.COMPILED, ("aot_eager", "module", "0.2"), 12),
}
SLOW = {
    "autocast": (scripts.AUTOCAST, (), 24),
    "accumulation": (scripts.ACCUMULATION, (), 25),
    "compiled-function": (scripts.COMPILED, ("aot_eager", "function", "0.2"), 12),
    "closure": (scripts.CLOSURE, (), 6),
    "two-optimizers": (scripts.TWO_OPTIMIZERS, (), 24),
    "dataloader": (scripts.DATALOADER, (), 16),
    "own-optimizer": (scripts.OWN_OPTIMIZER, (), 0),
    "compiled-method": (scripts.COMPILED, ("aot_eager", "method", "0.2"), 12),
    "compiled-inside": (scripts.COMPILED, ("aot_eager", "inside", "0.2"), 12),
    "compiled-inductor": (scripts.COMPILED, ("inductor", "module", "0"), 12),
    "compiled-inductor-dropout": (scripts.COMPILED, ("inductor", "module", "0.2"), 12),
    "hugging-face": (scripts.HUGGING_FACE, ("out",), 12),
    "lightning": (scripts.LIGHTNING, ("out",), 16),
}


def without_times(text: str) -> str:
    """HF prints seconds and rates among its losses."""
    return re.sub(r"'train_(runtime|samples_per_second|steps_per_second)': '?[\d.e+-]+'?", "", text)


@pytest.mark.parametrize(
    "name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_same_bits(tmp_path: Path, name: str) -> None:
    script, arguments, steps = {**CASES, **SLOW}[name]
    (tmp_path / "script.py").write_text(script)
    bare = run_python(tmp_path, "script.py", *arguments, warm=True)
    assert bare.status == 0, bare.err
    # Where an exam's result is asked for it has time on any machine; at 2 % a slow one may put it off.
    budget = 10 if name.startswith("compiled") else 2
    ours = watched(tmp_path, "script.py", *arguments, budget=budget, warm=True)
    assert ours.status == 0, ours.err
    assert without_times(ours.out) == without_times(bare.out)
    record = open_record(tmp_path / "run")
    assert record.fact("run.steps") == steps
    assert not [note.text for note in record.notes if note.level == "fault"]
    assert len(record["loss.root"]) >= max(1, steps // 2)
    if name.startswith("compiled"):
        assert_taped(record, own_random=name == "compiled-inductor-dropout")


def assert_taped(record: Record, *, own_random: bool) -> None:
    """The uncompiled twin of the step is on the tape, and its gradient is the compiled one up to rounding."""
    exam = record.exam("tape_gradient")
    assert exam is not None
    if own_random:
        assert not exam.done
        assert "random numbers of its own" in exam.reason
    else:
        assert exam.done, exam.reason
        assert exam.values["difference"] <= 10 * exam.values["noise"]
        assert exam.values["faithful"] < 1e-5


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow  # tests/field has programs of several ranks
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_same_bits_on_two_ranks(tmp_path: Path, start: str) -> None:
    (tmp_path / "script.py").write_text(scripts.RANKS)
    results = []
    for kind in ("bare", "ours"):
        (tmp_path / kind).mkdir()
        arguments = ("script.py", start, kind, free_port())
        options = {} if kind == "bare" else {"budget": 10}
        ended = (run_python if kind == "bare" else watched)(tmp_path, *arguments, **options)
        assert ended.status == 0, ended.err
        results.append([(tmp_path / kind / f"rank-{rank}").read_text() for rank in (0, 1)])
    assert results[0] == results[1]
    record = open_record(tmp_path / "run")
    assert [rank.meta["rank"] for rank in record.ranks] == [0, 1]
    for rank in record.ranks:
        assert rank.fact("run.steps") == 14
        assert rank.fact("run.ended") == 0
        assert not [note.text for note in rank.notes if note.level == "fault"]
    # DDP's .grad is the mean over ranks; the tape is compared with what this rank computed.
    exam = record.exam("tape_gradient")
    assert exam is not None
    assert exam.done, exam.reason
    assert exam.values["world_size"] == 2
    assert exam.values["difference"] < 1e-5


@pytest.mark.slow
def test_each_rank_of_torchrun_records(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        scripts.RANKS.partition('if __name__ == "__main__"')[0]
        .replace(
            'dist.init_process_group("gloo", rank=rank, world_size=2)',
            'dist.init_process_group("gloo"); rank = dist.get_rank()',
        )
        .replace('    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))\n', "")
        + "work(0, 0)\n"
    )
    (tmp_path / "out").mkdir()
    ended = run_python(
        tmp_path,
        *("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"),
        *("-m", "traindoctor", "run", "--quiet", "--after", "0", "script.py", "x", "out"),
    )
    assert ended.status == 0, ended.err
    (run,) = (tmp_path / "runs").iterdir()
    assert [rank.fact("run.steps") for rank in open_record(run).ranks] == [14, 14]
