"""The hand-written C trainer of examples/compare equals PyTorch, each planted bug shows first where its table says,
and the writers in C and Go leave dumps that can be read."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from traindoctor.compare.dump import DumpError, read_dump
from traindoctor.compare.trace import Entry, Key, Trace
from traindoctor.comparison import compare_sides
from traindoctor.tracing.patient import PatientSide

FOLDER = Path(__file__).parents[2] / "examples" / "compare"
FAULTS = json.loads((FOLDER / "faults.json").read_text())
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
CXX = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
GO = shutil.which("go")
needs_cc = pytest.mark.skipif(CC is None, reason="needs a C compiler (cc, gcc or clang)")

# Largest difference, as a share of PyTorch's tensor (2-norms). Measured with gcc 12 on x86: activations 4.4e-7,
# loss 1.2e-7, gradients 9.4e-7, weights 8.3e-8; updates 3.5e-5, because each is the difference of two rounded weights.
TOLERANCE = {"activation": 4e-6, "loss": 1e-6, "gradient": 8e-6, "weight": 1e-6, "update": 3e-4}
STEPS, WIDTH = 3, 32


def command(
    *words: str | Path, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def compiled(folder: Path, source: Path, *flags: str) -> Path:
    program = folder / "program"
    strict = ["-O1", "-std=c99", "-Wall", "-Werror"]
    made = command(CC, *strict, *flags, f"-I{FOLDER}", source, "-o", program, "-lm")
    assert made.returncode == 0, made.stderr
    return program


def trained(folder: Path, *flags: str) -> Trace:
    ran = command(compiled(folder, FOLDER / "trainer.c", *flags), folder / "dump")
    assert ran.returncode == 0, ran.stderr
    return read_dump(folder / "dump")


def in_torch(patient: ModuleType, dump: Trace) -> dict[Key, NDArray]:
    """Three steps of the PyTorch model from the dump's weights, on its batches."""
    model, _, loss_fn, optimizer = patient.gpt()
    model.load_state_dict({e.name: torch.tensor(e.read()) for e in dump.of_kind("weight", 0)})
    made: dict[Key, NDArray] = {}

    def keep(kind: str, name: str, tensor: torch.Tensor) -> None:
        made[kind, step, name] = tensor.detach().numpy().astype(np.float64)

    def watch(name: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            keep("activation", name, tensor)
            tensor.register_hook(lambda gradient: keep("gradient", name, gradient))

    for name, module in model.named_modules():
        if name:
            module.register_forward_pre_hook(
                lambda _, ins, name=name: watch(f"{name}.input", ins[0])
            )
            module.register_forward_hook(lambda _, ins, out, name=name: watch(name, out))
    for step in range(dump.steps):
        batch = {e.name: torch.tensor(e.read()) for e in dump.of_kind("input", step)}
        for name, weight in model.named_parameters():
            keep("weight", name, weight)
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        keep("loss", "loss", loss)
        loss.backward()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        optimizer.step()
        for name, weight in model.named_parameters():
            keep("gradient", name, weight.grad)
            keep("update", name, weight.detach() - before[name])
    return made


def compared(entry: Entry, values: NDArray) -> NDArray:
    """Without the keys' part of the qkv bias: it adds the same to all scores of a query, so its gradient is 0 but for
    rounding, and Adam makes steps of any size and sign of that."""
    bias = entry.name.endswith("qkv.bias") and entry.kind in ("weight", "update")
    made_with_it = entry.name.endswith("qkv") and entry.kind == "activation" and entry.step > 0
    if bias or made_with_it:
        return np.delete(values, np.s_[WIDTH : 2 * WIDTH], axis=-1)
    return values


def difference(entry: Entry, reference: dict[Key, NDArray]) -> float:
    ours, theirs = compared(entry, entry.values()), compared(entry, reference[entry.key])
    assert ours.shape == theirs.shape, entry.key
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return trained(tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def reference(sound: Trace) -> dict[Key, NDArray]:
    spec = importlib.util.spec_from_file_location("compare_patient", FOLDER / "patient.py")
    patient = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(patient)
    return in_torch(patient, sound)


@needs_cc
def test_equals_pytorch(sound: Trace, reference: dict[Key, NDArray]) -> None:
    wrong = {
        entry.key: share
        for entry in sound.entries
        if entry.kind != "input"
        and not (share := difference(entry, reference)) <= TOLERANCE[entry.kind]
    }
    assert not wrong
    # Nothing that PyTorch makes is left out. The input of a module is mostly the output of another.
    assert {key for key in reference if not key[2].endswith(".input")} <= set(sound.by_key)
    assert sound.steps == STEPS


@needs_cc
@pytest.mark.parametrize("name", FAULTS)
def test_first_wrong_tensor(name: str, tmp_path: Path, reference: dict[Key, NDArray]) -> None:
    dump = trained(tmp_path, f"-DFAULT_{name}")
    wrong = (
        entry.key
        for entry in dump.entries
        if entry.kind != "input" and not difference(entry, reference) <= TOLERANCE[entry.kind]
    )
    assert next(wrong, None) == tuple(FAULTS[name]["first"])


def test_every_fault_is_in_both_tables() -> None:
    source = (FOLDER / "trainer.c").read_text()
    assert set(re.findall(r"^#ifn?def FAULT_(\w+)", source, re.MULTILINE)) == set(FAULTS)
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| .* \| (\w+) (\d) `(.+)` \| (.+) \|$",
        (FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
    assert {
        name: {"first": [kind, int(step), tensor], "kind": difference}
        for name, kind, step, tensor, difference in rows
    } == {name: {"first": f["first"], "kind": f["kind"]} for name, f in FAULTS.items()}


# Forward, loss, backward and update in every run of the tests, the rest where there is time.
OFTEN = ("MASK_NEXT", "LOSS_SUM", "NO_DECAY", "STALE_GRADIENT")
NAMED = [
    pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow, id=name) for name in FAULTS
]


@needs_cc
@pytest.mark.parametrize("name", NAMED)
def test_compare_names_the_tensor_and_the_kind(name: str, tmp_path: Path) -> None:
    trained(tmp_path, f"-DFAULT_{name}")
    found = compare_sides(PatientSide(FOLDER / "patient.py", "gpt"), tmp_path / "dump")
    assert found.verdict == "different"
    assert found.first is not None
    assert list(found.first.entry.key) == FAULTS[name]["first"]
    assert found.kind is not None
    assert found.kind.code == FAULTS[name]["code"]


@needs_cc
def test_compare_finds_the_sound_trainer_equal(tmp_path: Path) -> None:
    trained(tmp_path)
    found = compare_sides(PatientSide(FOLDER / "patient.py", "gpt"), tmp_path / "dump")
    assert found.verdict == "equal"
    assert max(place.over for place in found.places if place.over is not None) < 0.5


@needs_cc
@pytest.mark.parametrize(
    ("file", "message"),
    [("index.jsonl", "stopped while it wrote"), ("tensors.bin", "is truncated")],
)
def test_a_truncated_dump_is_an_error(
    file: str, message: str, sound: Trace, tmp_path: Path
) -> None:
    shutil.copytree(sound.title, tmp_path / "dump")
    cut = tmp_path / "dump" / file
    os.truncate(cut, cut.stat().st_size - 10)
    with pytest.raises(DumpError, match=message):
        read_dump(tmp_path / "dump")


# Dies without closing its files. C99 and C++ both.
KILLED = """
#include <stdlib.h>
#include "dump.h"

int main(int argc, char **argv) {
    const long long shape[] = {2, 3};
    const float values[] = {0, 1, 2, 3, 4, -5.5f};
    const int32_t ints[] = {7, 8};
    const int64_t tokens[] = {1, -2, 3, 4, 5, 1LL << 40};
    Dump dump;
    dump_open(&dump, argv[argc - 1], "{\\"lr\\": 0.001}");
    dump_int64(&dump, "tokens", "input", 0, shape, 2, tokens, NULL);
    dump_int32(&dump, "lengths", "input", 0, shape, 1, ints, NULL);
    dump_float32(&dump, "norm", "activation", 0, shape, 2, values, "{\\"eps\\": 1e-05}");
    dump_float32(&dump, "loss", "loss", 0, NULL, 0, values + 5, NULL);
    _Exit(dump.failed ? 1 : 9);
}
"""


def check_small_dump(folder: Path) -> None:
    """What KILLED and the Go program write."""
    dump = read_dump(folder)
    assert dump.settings == {"lr": 0.001}
    assert [entry.key for entry in dump.entries] == [
        ("input", 0, "tokens"),
        ("input", 0, "lengths"),
        ("activation", 0, "norm"),
        ("loss", 0, "loss"),
    ]
    tokens, lengths, norm, loss = dump.entries
    assert (tokens.dtype, lengths.dtype, norm.dtype) == ("int64", "int32", "float32")
    assert tokens.values().tolist() == [[1, -2, 3], [4, 5, 1 << 40]]
    assert lengths.values().tolist() == [7, 8]
    assert norm.values().tolist() == [[0, 1, 2], [3, 4, -5.5]]
    assert norm.about == {"eps": 1e-05}
    assert loss.shape == ()
    assert float(loss.values()) == -5.5


@needs_cc
def test_a_killed_c_program_leaves_a_readable_dump(tmp_path: Path) -> None:
    (tmp_path / "killed.c").write_text(KILLED)
    assert command(compiled(tmp_path, tmp_path / "killed.c"), tmp_path / "dump").returncode == 9
    check_small_dump(tmp_path / "dump")


@pytest.mark.skipif(CXX is None, reason="needs a C++ compiler (c++, g++ or clang++)")
def test_the_header_is_also_cpp(tmp_path: Path) -> None:
    (tmp_path / "killed.cpp").write_text(KILLED)
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Werror"]
    made = command(CXX, *strict, f"-I{FOLDER}", tmp_path / "killed.cpp", "-o", tmp_path / "program")
    assert made.returncode == 0, made.stderr
    assert command(tmp_path / "program", tmp_path / "dump").returncode == 9
    check_small_dump(tmp_path / "dump")


@needs_cc
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk without room")
def test_a_full_disk_is_reported(sound: Trace, tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "tensors.bin").symlink_to("/dev/full")
    ran = command(Path(sound.title).parent / "program", tmp_path / "dump")
    assert ran.returncode == 1
    assert re.fullmatch(r"dump: tensors.bin: .+\n", ran.stderr)


GO_PROGRAM = """
package main

import (
	"os"

	"example/dump"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	w, err := dump.Create(os.Args[1], map[string]any{"lr": 0.001})
	check(err)
	shape, eps := []int{2, 3}, map[string]any{"eps": 1e-05}
	check(dump.Write(w, "tokens", "input", 0, shape, []int64{1, -2, 3, 4, 5, 1 << 40}, nil))
	check(dump.Write(w, "lengths", "input", 0, []int{2}, []int32{7, 8}, nil))
	check(dump.Write(w, "norm", "activation", 0, shape, []float32{0, 1, 2, 3, 4, -5.5}, eps))
	check(dump.Write(w, "loss", "loss", 0, nil, []float32{-5.5}, nil))
	if dump.Write(w, "norm", "gradient", 0, shape, []float32{1}, nil) == nil {
		panic("one number for six was accepted")
	}
	os.Exit(9)
}
"""


@pytest.mark.skipif(GO is None, reason="needs Go 1.18 or later")
def test_the_go_writer(tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    shutil.copy(FOLDER / "dump.go", tmp_path / "dump")
    (tmp_path / "go.mod").write_text("module example\n\ngo 1.18\n")
    (tmp_path / "main.go").write_text(GO_PROGRAM)
    built = command(GO, "build", folder=tmp_path, GOTOOLCHAIN="local", GOPROXY="off")  # no download
    assert built.returncode == 0, built.stderr
    assert command(tmp_path / "example", tmp_path / "made").returncode == 9
    check_small_dump(tmp_path / "made")
