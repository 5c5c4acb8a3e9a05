"""Dumps: what is written is read back, and whatever a folder holds, the answer is a trace or one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from compare import dump_variants
from compare.dump_variants import make_dump, variants
from compare.made_traces import changed, full_disk, transformer, write
from fuzz.outcome import fault_of, fault_of_sentence
from traindoctor import comparison
from traindoctor.compare import stored
from traindoctor.compare.answer import Answer
from traindoctor.compare.dump import DumpError, DumpWriter, read_dump
from traindoctor.compare.stored import DTYPES
from traindoctor.compare.trace import Entry, Trace

MARK = Path("/nonexistent/EXECUTED")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("dumps") / "good")


def outcome_of(folder: Path) -> str:
    """read, refused with a sentence, or what is wrong."""
    try:
        for one in read_dump(folder).entries:
            one.values()
    except DumpError as error:
        return fault_of_sentence(str(error)) or "refused"
    return "read"


def test_there_are_enough_variants() -> None:
    names = [one.name for one in variants(MARK)]
    assert len(names) == len(set(names)) > 300


@pytest.mark.parametrize("part", range(6))
def test_spoilt_dumps(good: Path, tmp_path: Path, part: int) -> None:
    mark = tmp_path / "EXECUTED"
    faults = {}
    for number, one in enumerate(list(variants(mark))[part::6]):
        folder = tmp_path / str(number) / "dump"
        shutil.copytree(good, folder)
        one.spoil(folder)
        outcome = outcome_of(folder)
        if outcome not in (("read", "refused") if one.outcome == "any" else (one.outcome,)):
            faults[one.name] = outcome
        elif fault := fault_of("compare", good, folder) or fault_of("compare", folder, good):
            faults[one.name] = fault
        shutil.rmtree(folder.parent)
    assert faults == {}
    assert not mark.exists()


def test_the_pickles_would_run(tmp_path: Path) -> None:
    import pickle

    pickle.loads(pickle.dumps(dump_variants.Harmful(tmp_path / "EXECUTED")))
    assert (tmp_path / "EXECUTED").is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["index.jsonl", "tensors.bin", "."])
def test_unreadable(good: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(good, tmp_path / "dump")
    (tmp_path / "dump" / name).chmod(0)
    assert fault_of("compare", good, tmp_path / "dump") is None
    (tmp_path / "dump" / name).chmod(0o700)


# --- files that change while they are compared


def _shorter(file: Path) -> None:
    os.truncate(file, 10)


def _gone(file: Path) -> None:
    file.unlink()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("spoil", [_shorter, _gone, _pipe, _device, _folder])
@pytest.mark.parametrize("name", ["tensors.bin", "head.npy", "mlp.safetensors"])
def test_a_file_that_is_replaced_after_the_index_was_read(
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    spoil: Callable[[Path], None],
) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(good, folder)

    def read_and_spoil(which: Path) -> Trace:
        found = read_dump(which)
        if which == folder:
            spoil(folder / name)
        return found

    monkeypatch.setattr(comparison, "read_dump", read_and_spoil)
    with pytest.raises(DumpError, match=rf"{name} cannot be read: ") as caught:
        comparison.compare_sides(good, folder)
    assert fault_of_sentence(str(caught.value)) is None


def test_replaced_by_a_pipe_between_the_look_and_the_opening(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(good, tmp_path / "dump")
    trace = read_dump(tmp_path / "dump")
    _pipe(tmp_path / "dump" / "tensors.bin")
    monkeypatch.setattr(stored, "require_file", os.stat)
    with pytest.raises(DumpError, match="it is not a regular file"):
        trace.entries[0].values()


def test_more_numbers_than_memory(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    trace = read_dump(good)
    monkeypatch.setattr(np, "fromfile", full)
    with pytest.raises(DumpError, match="352 bytes do not fit into memory"):
        trace.entries[0].values()


# --- what a reader learns


def message(folder: Path) -> str:
    with pytest.raises(DumpError) as caught:
        read_dump(folder)
    return str(caught.value)


def test_messages_name_the_line_and_what_to_do(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"

    def told(**fields: Any) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good, folder)
        dump_variants.change(folder, "blocks.0.norm", **fields)
        return message(folder).replace(str(folder), "dump")

    size = (good / "tensors.bin").stat().st_size
    offset = 4 * (11 * 8 + 8 + 2 * 16 * 8 + 2 * 5 * 8) + 8 * 2 * 5
    assert told(shape=[2, 5, 800]) == (
        f"dump/index.jsonl, line 8: dump/tensors.bin has {size} bytes, 'blocks.0.norm' needs 32000 from {offset} on: "
        "the file is truncated, or shape, dtype or offset are wrong"
    )
    assert told(step=-1) == (
        "dump/index.jsonl, line 8: 'step' must be a whole number from 0 to 999, it is -1"
    )
    assert "'dtype' must be one of float64, float32" in told(dtype="f4")
    assert told(file="../x").endswith("'file' must name a file inside the folder, it is '../x'")
    assert told(name="loss", kind="loss", shape=[1]).endswith(
        "loss 'loss' of step 0 stands there twice; add #2 to the name of a second call"
    )
    (folder / "index.jsonl").write_text('{"format": 1}\n{"name": "x", "ki')
    assert message(folder).endswith("was the program stopped while it wrote?")


def compared(tmp_path: Path, a: list[Entry], b: list[Entry], **more: Any) -> Answer:
    folders = [write(tmp_path / name, side, **more) for name, side in (("a", a), ("b", b))]
    return comparison.compare_sides(*folders)


def test_nan_in_one_side_and_in_both(tmp_path: Path) -> None:
    a = transformer()

    def hole(one: Entry, values: Any) -> Any:
        if (one.kind, one.name) != ("activation", "blocks.1.mlp"):
            return values
        return np.where(values == values.max(), np.nan, values).astype(np.float32)

    b = changed(a, hole)
    found = compared(tmp_path, a, b)
    assert found.verdict == "different"
    assert found.first.entry.name == "blocks.1.mlp"
    assert found.kind.code == "not-finite"
    assert compared(tmp_path, b, b).verdict == "equal"
    noise = changed(b, lambda one, v: v if one.kind == "input" else (v * (1 + 1e-7)).astype("f4"))
    assert compared(tmp_path, b, noise).verdict == "equal"
    # In A alone: B is not what is trusted.
    assert compared(tmp_path, b, a).first.entry.name == "blocks.1.mlp"


def test_another_shape(tmp_path: Path) -> None:
    a = transformer()
    b = changed(a, lambda one, v: v[:, :3] if (one.kind, one.name) == ("activation", "head") else v)
    found = compared(tmp_path, a, b)
    assert (found.verdict, found.first.state) == ("different", "shape")
    assert found.headline == "DIFFERENT: first the output of head at step 0 (in the forward pass)"


def test_missing_tensors_are_counted(tmp_path: Path) -> None:
    a = transformer()
    b = changed(a, lambda one, v: None if "mlp.up" in one.name else v)
    found = compared(tmp_path, a, b)
    assert found.verdict == "equal"
    states = [place.state for place in found.places]
    assert states.count("missing") == sum("mlp.up" in one.name for one in a)
    assert "2 weights of A have no partner in B: blocks.0.mlp.up.weight, " in " ".join(found.notes)


def test_layers_in_another_order(tmp_path: Path) -> None:
    """B's program writes its layers as it likes: pairs are found by name, the order is A's."""
    a = transformer(layers=3)
    assert compared(tmp_path, a, a[::-1]).verdict == "equal"
    shuffled = [a[i] for i in np.random.default_rng(0).permutation(len(a))]
    found = compared(tmp_path, a, shuffled)
    assert found.verdict == "equal"
    assert len(found.places) == len(a)
    assert {place.state for place in found.places} == {"same"}


def test_settings_reach_the_trace(tmp_path: Path) -> None:
    folder = write(tmp_path / "dump", transformer(), lr=0.1, heads=2, note=["free"])
    assert read_dump(folder).settings == {"lr": 0.1, "heads": 2, "note": ["free"]}


# --- written and read back

NATIVE = sorted(set(DTYPES) - {"bfloat16"})
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
HALVES = arrays.arrays(np.uint16, SHAPES)
NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


def bits(values: Any) -> bytes:
    """NaN is NaN."""
    return np.ascontiguousarray(values).tobytes()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(NATIVE), name=NAMES)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, data: Any, dtype: str, name: str
) -> None:
    order = data.draw(st.sampled_from("<>"))
    values = data.draw(arrays.arrays(np.dtype(dtype).newbyteorder(order), SHAPES))
    if data.draw(st.booleans()):
        values = values.T
    folder = tmp_path_factory.mktemp("round")
    with DumpWriter(folder) as dump:
        dump.write("first", "activation", step=0, values=np.ones(3, np.float32))
        dump.write(name + "x", "activation", step=1, values=values, about={"eps": 0.5})
    found = read_dump(folder).entries[1]
    assert (found.name, found.dtype, found.shape) == (name + "x", dtype, values.shape)
    assert found.about == {"eps": 0.5}
    read = found.read()
    assert read.shape == values.shape
    expected = values.astype(values.dtype.newbyteorder("="))
    assert bits(read) == bits(expected)
    for suffix in ("npy", "safetensors"):
        if suffix == "npy":
            np.save(folder / "x.npy", values)
        else:
            from safetensors.numpy import save_file

            save_file({name + "x": np.array(expected, order="C")}, folder / "x.safetensors")
        row = {"name": name + "x", "kind": "activation", "step": 0, "dtype": dtype}
        row |= {"shape": list(values.shape), "file": f"x.{suffix}"}
        (folder / "index.jsonl").write_text(f'{{"format": 1}}\n{json.dumps(row)}\n')
        assert bits(read_dump(folder).entries[0].read()) == bits(expected)


@settings(max_examples=25, deadline=None)
@given(halves=HALVES, signed=st.booleans())
def test_round_trip_of_bfloat16(
    tmp_path_factory: pytest.TempPathFactory, halves: Any, signed: bool
) -> None:
    import torch

    folder = tmp_path_factory.mktemp("round")
    with DumpWriter(folder) as dump:
        values = halves.view(np.int16) if signed else halves
        dump.write("x", "weight", step=0, values=values, dtype="bfloat16")
    read = read_dump(folder).entries[0].read()
    meant = torch.from_numpy(halves.view(np.int16).copy()).view(torch.bfloat16).float().numpy()
    assert read.dtype == np.float32
    assert read.shape == halves.shape
    assert np.array_equal(read, meant, equal_nan=True)


@given(shape=arrays.array_shapes(min_dims=2, max_dims=3, max_side=5), data=st.data())
@settings(max_examples=30, deadline=None)
def test_round_trip_of_some_rows(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], data: Any
) -> None:
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    flat = whole.reshape(-1, shape[-1])
    rows = tuple(sorted(data.draw(st.sets(st.integers(0, len(flat) - 1), min_size=1))))
    folder = tmp_path_factory.mktemp("rows")
    with DumpWriter(folder) as dump:
        dump.write("x", "activation", step=0, values=flat[list(rows)], shape=shape, rows=rows)
    found = read_dump(folder).entries[0]
    assert (found.shape, found.rows) == (shape, rows)
    assert np.array_equal(found.read(), flat[list(rows)])


def test_the_writer_refuses_what_no_dump_can_hold(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "dump") as dump:
        for values in (np.ones(2, np.complex64), np.array(["x"]), np.ones(2, np.uint32)):
            with pytest.raises(
                ValueError, match=r"x: a dump cannot hold .* its dtypes are float64"
            ):
                dump.write("x", "weight", step=0, values=values)
        with pytest.raises(ValueError, match="a dump cannot hold float32 as bfloat16"):
            dump.write("x", "weight", step=0, values=np.ones(2, np.float32), dtype="bfloat16")
        with pytest.raises(ValueError, match="kind must be one of input, weight"):
            dump.write("x", "weights", step=0, values=np.ones(2))


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    def written() -> None:
        with DumpWriter(tmp_path / "dump") as dump:
            for step in range(9):
                dump.write("x", "weight", step=step, values=np.full(300, step, np.float32))

    with full_disk(), pytest.raises(DumpError, match=r"cannot write .*dump: File too large"):
        written()
    # What was written before stays readable.
    assert [one.read()[0] for one in read_dump(tmp_path / "dump").entries] == [0, 1, 2]
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match=re.escape(f"cannot write {tmp_path}/file/dump: ")):
        DumpWriter(tmp_path / "file" / "dump")


def test_a_program_that_dies_leaves_what_it_wrote(tmp_path: Path) -> None:
    dump = DumpWriter(tmp_path)
    for step in range(3):
        dump.write("x", "weight", step=step, values=np.full(4, step, np.float32))
    found = read_dump(tmp_path).entries
    assert [one.read()[0] for one in found] == [0, 1, 2]
    dump.close()
