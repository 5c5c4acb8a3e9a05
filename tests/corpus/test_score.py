"""The scorer counts as the corpus README says, and the truth files are whole."""

from __future__ import annotations

import ast
import collections
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from traindoctor.diagnosis.rules import EXPLAINS

CORPUS = Path(__file__).parents[2] / "corpus"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", CORPUS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


score = load("score")


def write(folder: Path, name: str, verdict: str, *causes: str) -> None:
    rows = [{"cause": cause, "proven_step": 7} for cause in causes]
    (folder / f"{name}.json").write_text(json.dumps({"verdict": verdict, "causes": rows}))


def row(folder: Path, cause: str | None, *accept: str) -> Any:
    return score.read_row("x", {"cause": cause, "accept": list(accept)}, folder)


def test_the_true_cause_first(tmp_path: Path) -> None:
    write(tmp_path, "x", "sick", "double-softmax", "lr-too-low")
    found = row(tmp_path, "double-softmax")
    assert (found.result, found.rank, found.proven_step) == ("first", 1, 7)


def test_an_accepted_cause_counts(tmp_path: Path) -> None:
    write(tmp_path, "x", "sick", "no-warmup")
    assert row(tmp_path, "lr-too-high", "no-warmup").first


def test_third_is_among_three_and_fourth_is_wrong(tmp_path: Path) -> None:
    write(tmp_path, "x", "sick", "a", "b", "c", "d")
    assert row(tmp_path, "c").result == "among 3"
    assert row(tmp_path, "d").result == "WRONG CAUSE"


def test_inconclusive_on_a_sick_script_is_a_miss_even_with_the_cause(tmp_path: Path) -> None:
    write(tmp_path, "x", "inconclusive", "double-softmax")
    assert row(tmp_path, "double-softmax").result == "MISSED"


def test_healthy_called_sick_is_a_false_alarm(tmp_path: Path) -> None:
    write(tmp_path, "x", "sick", "a")
    assert row(tmp_path, None).result == "FALSE ALARM"
    write(tmp_path, "x", "inconclusive")
    assert row(tmp_path, None).result == "inconclusive"


def test_missing_and_broken_verdicts_are_results(tmp_path: Path) -> None:
    assert row(tmp_path, "a").verdict == "missing"
    (tmp_path / "x.json").write_text("{")
    assert row(tmp_path, "a").result == "MISSED"


def test_the_bar(tmp_path: Path) -> None:
    write(tmp_path, "x", "sick", "a")
    good, bad = row(tmp_path, "a"), row(tmp_path, "b")
    assert score.meets([good] * 9 + [bad], 1.0, 0.9, 0)
    assert not score.meets([good] * 8 + [bad] * 2, 1.0, 0.9, 0)
    assert not score.meets([good, row(tmp_path, None)], 1.0, 0.9, 0)


def truths() -> dict[str, dict[str, Any]]:
    shared = json.loads((CORPUS / "truth.json").read_text())
    return {**shared, **json.loads((CORPUS / "own" / "truth.json").read_text())}


def test_every_cause_has_two_scripts() -> None:
    count = collections.Counter(truth["cause"] for truth in truths().values())
    lacking = {cause for cause in EXPLAINS if count[cause] < 2}
    assert not lacking


@pytest.mark.parametrize(("folder", "truth"), [("cases", "truth.json"), ("own", "own/truth.json")])
def test_truth_names_known_causes_and_existing_scripts(folder: str, truth: str) -> None:
    told = json.loads((CORPUS / truth).read_text())
    assert set(told) == {file.stem for file in (CORPUS / folder).glob("*.py")}
    for name, entry in told.items():
        named = {*entry["accept"], *([entry["cause"]] if entry["cause"] else [])}
        assert named <= set(EXPLAINS), name


def test_scripts_of_our_own_do_not_tell() -> None:
    """No comment, docstring or name gives the answer away."""
    for file in (CORPUS / "own").glob("*.py"):
        source = file.read_text()
        assert "#" not in source.replace("%23", ""), file.name
        assert ast.get_docstring(ast.parse(source)) is None
        assert not [cause for cause in EXPLAINS if cause.replace("-", "_") in source], file.name


def test_a_script_for_a_gpu_is_left_out_and_named_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load("run")
    jobs = run.jobs_of(["own"], {"o253", "o001"})
    for there in (True, False):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        names = [job.name for job in jobs if run.runs_here(job)]
        assert names == (["o001", "o253"] if there else ["o001"])
    assert "own/o253  needs a CUDA device: not run" in capsys.readouterr().out
