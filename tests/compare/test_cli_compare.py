"""`traindoctor compare` as a user types it: what it prints and writes, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from compare.made_traces import changed, full_disk, transformer, write, wrong_from
from traindoctor.cli import main
from traindoctor.compare import answer
from traindoctor.compare.trace import Entry

SCHEMA = json.loads(Path(answer.__file__).with_name("answer.schema.json").read_text())

MODEL = """
import torch
from torch import nn

def loss_fn(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)

def make(scale=1.0, act=nn.ReLU, make_optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), act(), nn.Linear(8, 3))
    batches = [(torch.randn(6, 4), torch.randn(6, 3))]
    return model, batches, loss_fn, make_optimizer(model.parameters(), lr=0.1 * scale)

def wrong_rate():
    return make(scale=2.0)

def gelu():
    return make(act=nn.GELU)
"""


@dataclass
class Told:
    status: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What a mistake of the user's is answered with."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("traindoctor: ")
        assert self.status == 2
        return lines[0].removeprefix("traindoctor: ")


Compare = Callable[..., Told]


@pytest.fixture
def compare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Compare:
    """The command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Told:
        monkeypatch.setattr(sys, "argv", ["traindoctor", "compare", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return Told(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A good one, one with other rounding, one that is wrong, one of something else."""
    a = transformer(steps=2)
    sides: dict[str, list[Entry]] = {
        "good": a,
        "near": changed(a, wrong_from("nothing")),
        "wrong": changed(a, wrong_from("blocks.1.mlp.up")),
        "other": [one for one in a if one.kind == "input"],
    }
    for name, entries in sides.items():
        write(tmp_path / name, entries)
    return tmp_path


STATUSES = [
    ("good", 0, "equal"),
    ("near", 0, "equal"),
    ("wrong", 1, "different"),
    ("other", 3, "inconclusive"),
]


@pytest.mark.parametrize(("b", "status", "verdict"), STATUSES)
def test_status_and_json(compare: Compare, dumps: Path, b: str, status: int, verdict: str) -> None:
    told = compare("good", b, "--json", "-")
    assert (told.status, told.err) == (status, "")
    found = json.loads(told.out)
    jsonschema.validate(found, SCHEMA)
    assert found["verdict"] == verdict
    assert found["headline"].startswith(verdict.upper())
    assert (found["a"], found["b"]) == ("good", b)
    assert found["reproduce"] == f"traindoctor compare good {b} --steps 3"
    assert (found["first"] is not None) == (verdict == "different")
    again = compare("good", b, "--json", "answer.json")
    assert again.status == status
    assert json.loads((dumps / "answer.json").read_text()) == found
    # With a file the terminal says it as well.
    assert again.out.startswith(verdict.upper())


def test_the_first_difference_in_json(compare: Compare, dumps: Path) -> None:
    found = json.loads(compare("good", "wrong", "--json", "-").out)
    assert found["first"]["name"] == "blocks.1.mlp.up"
    assert found["where"] == "the output of blocks.1.mlp.up at step 0 (in the forward pass)"
    assert found["kind"] == {"code": "factor", "sentence": "B is A times 3"}
    assert found["tolerance"] == {"measured": False, "draws": 0, "dtype": "float32"}
    at = found["tensors"].index(found["first"])
    assert {tensor["state"] for tensor in found["tensors"][:at]} == {"same"}


def test_answers_of_every_kind_fit_the_schema(compare: Compare, dumps: Path) -> None:
    a = transformer(steps=2)

    def without(one: Entry, values: Any) -> Any:
        if (one.kind, one.name) == ("activation", "blocks.0.mlp"):
            return None
        if (one.kind, one.name) == ("activation", "head"):
            return values[:, :2]
        if (one.kind, one.name, one.step) == ("gradient", "blocks.1.mlp", 0):
            return np.where(values == values.max(), np.nan, values)
        return None if one.kind == "gradient" and "blocks.0" in one.name else values

    write(dumps / "odd", changed(a, without))
    for pair in (("good", "odd"), ("odd", "good"), ("odd", "odd"), ("other", "good")):
        told = compare(*pair, "--json", "-")
        jsonschema.validate(json.loads(told.out), SCHEMA)
        assert "NaN" not in told.out.replace("are NaN", "")


def test_the_page(compare: Compare, dumps: Path) -> None:
    assert compare("good", "wrong", "--report", "new/page.html").status == 1
    assert '"verdict":"different"' in (dumps / "new" / "page.html").read_text()
    told = compare("good", "wrong", "--report", "page.txt").sentence
    assert told == "--report writes a page: give a name that ends in .html, not page.txt"
    assert not (dumps / "page.txt").exists()


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_files_that_cannot_be_written(compare: Compare, dumps: Path, option: str) -> None:
    (dumps / "file").write_text("")
    assert compare("good", "near", option, "file/x.html").sentence.startswith("cannot write file/x")
    with full_disk():
        told = compare("good", "near", option, "full.html")
    assert told.sentence == "cannot write full.html: File too large"


def test_perturbed_dumps_beside_the_first(compare: Compare, dumps: Path) -> None:
    a = transformer(steps=2)
    for number in (1, 2):
        noise = np.random.default_rng(number)

        def moved(one: Entry, values: Any, noise: Any = noise) -> Any:
            if one.kind == "input":
                return values
            return (values * (1 + noise.uniform(-1e-7, 1e-7, values.shape))).astype(np.float32)

        write(dumps / "good" / f"perturbed-{number}", changed(a, moved))
    found = json.loads(compare("good", "near", "--json", "-").out)
    assert found["tolerance"] == {"measured": True, "draws": 2, "dtype": "float32"}
    assert found["verdict"] == "equal"


WRONG_USE = {
    ("good", "none"): "none",
    ("none", "good"): "none",
    ("good", ""): "",
    ("good", "empty"): "empty is neither a dump folder (it has no index.jsonl) nor a recorded run",
    ("good", "none.py:make"): "there is no file 'none.py'",
    ("good", "none.py"): "none.py",
    ("good", "near", "--map", "none.json"): "the map file none.json cannot be read",
    ("good", "near", "--map", "list.json"): "the map file list.json must be a JSON object",
    ("good", "near", "--map", "good"): "the map file good cannot be read",
}


@pytest.mark.parametrize("words", WRONG_USE, ids=" ".join)
def test_wrong_use(compare: Compare, dumps: Path, words: tuple[str, ...]) -> None:
    (dumps / "empty").mkdir()
    (dumps / "list.json").write_text("[]")
    assert WRONG_USE[words] in compare(*words).sentence


def test_wrong_options(compare: Compare, dumps: Path) -> None:
    for words in (("good",), ("good", "near", "--steps", "0"), ("good", "near", "--draws", "x")):
        told = compare(*words)
        assert told.status == 2
        assert "Error: " in told.err
        assert "Traceback" not in told.err


def test_map(compare: Compare, dumps: Path) -> None:
    a = transformer(steps=2)
    names = {"embedding": "wte", "embedding.weight": "wte.table"}
    renamed = [
        Entry(names.get(e.name, e.name), e.kind, e.step, e.shape, e.dtype, e.read) for e in a
    ]
    write(dumps / "renamed", renamed)
    (dumps / "map.json").write_text(json.dumps({new: old for old, new in names.items()}))
    found = json.loads(compare("good", "renamed", "--map", "map.json", "--json", "-").out)
    assert found["verdict"] == "equal"
    assert {tensor["state"] for tensor in found["tensors"]} == {"same"}
    assert found["reproduce"].endswith("--steps 3 --map map.json")


LONG = "a_module_with_a_name_that_is_longer_than_any_terminal_is_wide.and_then_another_one.of_it"


@pytest.mark.parametrize("columns", ["80", "60", None])
@pytest.mark.parametrize("b", ["near", "wrong", "other", "long"])
def test_no_line_is_wider_than_the_terminal(
    compare: Compare, dumps: Path, monkeypatch: pytest.MonkeyPatch, columns: str | None, b: str
) -> None:
    """Without a terminal and without COLUMNS it has 80 columns."""
    if columns is None:
        monkeypatch.delenv("COLUMNS")
    else:
        monkeypatch.setenv("COLUMNS", columns)
    a = "good"
    if b == "long":
        sides = [
            [Entry(f"{LONG}.{e.name}", e.kind, e.step, e.shape, e.dtype, e.read) for e in side]
            for side in (
                transformer(),
                changed(transformer(), lambda e, v: v * 1e9 if e.kind == "weight" else v),
            )
        ]
        a, b = (str(write(dumps / name, side)) for name, side in zip(("la", "lb"), sides))
    told = compare(a, b)
    wide = [line for line in told.out.splitlines() if len(line) > int(columns or 80)]
    # A command is copied: it may be as long as it is.
    assert [line for line in wide if "traindoctor compare" not in line] == []


# --- functions


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_functions(compare: Compare, models: Path) -> None:
    told = compare("model.py:make", "model.py:wrong_rate", "--json", "-", "--draws", "1")
    assert (told.status, told.err) == (1, "")
    found = json.loads(told.out)
    jsonschema.validate(found, SCHEMA)
    assert found["first"]["kind"] == "update"
    assert found["kind"]["sentence"].startswith("B is A times 2")
    assert found["tolerance"]["measured"]
    equal = compare("model.py:make", "model.py:make", "--steps", "1", "--draws", "1")
    assert (equal.status, equal.err) == (0, "")
    assert equal.out.startswith("EQUAL to the last bit")


def test_a_function_against_a_dump_that_changes(
    compare: Compare, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are read when they are needed: a sentence then as well."""
    from traindoctor import comparison
    from traindoctor.compare.dump import read_dump

    rng = np.random.default_rng(0)
    entries = [
        Entry(name, "weight", 0, shape, "float32", lambda s=shape: rng.random(s, np.float32))
        for name, shape in (("0.weight", (8, 4)), ("2.weight", (3, 8)))
    ]
    write(models / "dump", entries)

    def read_and_cut(folder: Path) -> Any:
        found = read_dump(folder)
        if folder == Path("dump"):
            os.truncate(models / "dump" / "tensors.bin", 5)
        return found

    monkeypatch.setattr(comparison, "read_dump", read_and_cut)
    told = compare("model.py:make", "dump")
    assert told.sentence.endswith("it is shorter than it was when the index was read")


RUBBISH = {
    "return None": "must give (model, batches, loss_fn, optimizer), it gave NoneType",
    "return 1, 2, 3": "must give (model, batches, loss_fn, optimizer), it gave tuple of 3",
    "return {'model': make()[0]}": "gave a dict without batches, loss_fn, optimizer",
    "return make()[::-1]": "in this order: an nn.Module first, a torch.optim.Optimizer last",
    "m, b, l, o = make(); return m, [], l, o": "gave no batch",
}


@pytest.mark.parametrize("body", RUBBISH)
def test_functions_that_give_rubbish(compare: Compare, models: Path, body: str) -> None:
    with (models / "model.py").open("a") as file:
        file.write(f"\ndef rubbish():\n    {body}\n")
    assert RUBBISH[body] in compare("model.py:make", "model.py:rubbish").sentence


def test_wrong_names_of_functions(compare: Compare, models: Path) -> None:
    told = compare("model.py:mak", "model.py:make").sentence
    assert told == "model.py has no function 'mak'; it defines loss_fn, make, wrong_rate, gelu"
    assert "has no function ''" in compare("model.py:", "model.py:make").sentence


PLACES = {
    "import": ("raise RuntimeError('mine')", ""),
    "call": ("", "raise RuntimeError('mine')"),
    "forward": (
        "class Bad(nn.Linear):\n    def forward(self, x):\n        raise RuntimeError('mine')",
        "m, b, l, o = make(); return Bad(4, 3), b, l, o",
    ),
    "loss": (
        "def bad(model, batch):\n    raise RuntimeError('mine')",
        "m, b, l, o = make(); return m, b, bad, o",
    ),
}


@pytest.fixture(params=PLACES)
def bad(request: pytest.FixtureRequest, models: Path) -> Path:
    top, body = PLACES[request.param]
    (models / "bad.py").write_text(MODEL + f"\n{top}\ndef bad_make():\n    {body or 'pass'}\n")
    return models / "bad.py"


def test_an_exception_of_the_users_is_theirs(
    bad: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not swallowed, not put into a sentence of ours: the traceback names their line."""
    monkeypatch.chdir(bad.parent)
    words = ["traindoctor", "compare", "model.py:make", "bad.py:bad_make", "--draws", "1"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises((RuntimeError, SystemExit)) as caught:
        main()
    shown = "".join(traceback.format_exception(caught.value)) + capsys.readouterr().err
    assert "RuntimeError: mine" in shown
    assert 'bad.py", line ' in shown


@pytest.mark.slow  # a process that imports torch
def test_an_exception_of_the_users_and_the_status(models: Path) -> None:
    (models / "bad.py").write_text(MODEL + "\ndef bad_make():\n    raise RuntimeError('mine')\n")
    told = subprocess.run(
        [sys.executable, "-m", "traindoctor", "compare", "model.py:make", "bad.py:bad_make"],
        cwd=models,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback (most recent call last)" in told.stderr
    assert "raise RuntimeError('mine')" in told.stderr
    assert told.stdout == ""
    # Not 0 (equal), not 3 (inconclusive).
    assert told.returncode == 2
