"""A pickle in the place of every file of a run folder, and every command that reads one: nothing in it runs."""

from __future__ import annotations

import ast
import io
import os
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import traindoctor
from fuzz.outcome import fault_of
from made_runs import make_run
from traindoctor.lm.files import write_json
from traindoctor.lm.loop import train
from traindoctor.lm.sources import resolve

STEP = Path("checkpoints/step-00000002")
SHARD = STEP / "sharded" / "rank-00000-of-00001.safetensors"
FILES = [
    *("record-0.sqlite", "config.json", "tokenizer.json", "metrics.csv"),
    *("data/meta.json", "data/train.bin", "data/val.bin"),
    *("checkpoints/best.json", STEP / "state.json"),
    *(STEP / "model.safetensors", STEP / "optimizer.safetensors"),
    *(STEP / "sharded" / ".metadata", STEP / "sharded" / "__0_0.distcp", SHARD),
]


class Harmful:
    """Unpickled, it makes a folder."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.where),)


def harmful(where: Path, form: str) -> bytes:
    """The pickle by itself, as torch.save writes one, and as the first of two in a stream."""
    data = pickle.dumps(Harmful(where))
    if form == "plain":
        return data
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return file.getvalue()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    sizes = {"layers": 1, "heads": 2, "width": 16, "block": 16, "batch": 2, "steps": 2}
    more = {"eval_every": 2, "sample_tokens": 0, "eval_blocks": 2, "device": "cpu"}
    given = {**sizes, **more, "data": (str(folder / "text.txt"),)}
    train(folder / "run", resolve(given=given))
    make_run(folder / "run", steps=5)
    return folder / "run"


@pytest.mark.parametrize("form", ["plain", "zip"])
@pytest.mark.parametrize("name", FILES, ids=str)
def test_a_pickle_is_never_run(tmp_path: Path, good: Path, name: Path | str, form: str) -> None:
    run, mark = tmp_path / "run", tmp_path / "EXECUTED"
    shutil.copytree(good, run)
    data = harmful(mark, form)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(data)
    if Path(name).name in ("model.safetensors", "optimizer.safetensors", SHARD.name):
        # A hostile hand gives the file its checksum.
        sums = {Path(name).name: zlib.crc32(data)}
        state = {"step": 2, "best_loss": 1.0, "best_step": 2}
        write_json(run / STEP / "state.json", {"format": 2, "state": state, "crc32": sums})
    ways: list[tuple[object, ...]] = [
        ("generate", run, "--max-tokens", 1),
        ("export", run, "--format", "hf", "-o", tmp_path / "hf"),
        ("train", "--resume", run, "--no-doctor", "--quiet"),
        ("diagnose", run),
        ("report", run, "-o", tmp_path / "report.html"),
        ("runs", tmp_path),
        ("export", run, "--format", "csv", "-o", tmp_path / "out.csv"),
        ("import", run / name, "-o", tmp_path / "imported"),
        ("train", "--config", run / name, "--out", tmp_path / "new", "--data", tmp_path / "none"),
    ]
    assert [fault for way in ways if (fault := fault_of(*way))] == []
    assert not mark.exists()


def test_the_pickle_would_run(tmp_path: Path) -> None:
    pickle.loads(harmful(tmp_path / "EXECUTED", "plain"))
    assert (tmp_path / "EXECUTED").is_dir()


def test_old_shards_are_refused_by_name(tmp_path: Path, good: Path) -> None:
    from traindoctor.errors import CheckpointError
    from traindoctor.lm.checkpoint import load_run

    shutil.copytree(good, tmp_path / "run")
    (tmp_path / "run" / STEP / "sharded").mkdir()
    (tmp_path / "run" / STEP / "sharded" / ".metadata").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pickles of an older traindoctor"):
        load_run(tmp_path / "run")


def test_no_source_of_ours_unpickles() -> None:
    """The one call that runs what it is given belongs to the script that the user names."""
    root = Path(traindoctor.__file__).parent
    found = {
        (file.relative_to(root).as_posix(), use)
        for file in root.rglob("*.py")
        for use in uses_of_code(ast.parse(file.read_text()))
    }
    assert found == {
        ("capture/runner.py", "exec"),
        ("cli/check.py", "runpy"),
        ("tracing/patient.py", "runpy"),
    }


def uses_of_code(tree: ast.AST) -> Iterator[str]:
    """Whatever turns data into something that runs."""
    modules = (
        "pickle marshal shelve dill cloudpickle joblib yaml runpy torch.distributed.checkpoint"
    )
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (n for n in names for m in modules.split() if n == m or n.startswith(f"{m}."))
        if isinstance(node, ast.Name) and node.id in ("eval", "exec"):
            yield node.id
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
            yield node.attr
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield node.arg
