"""We come when the script has imported torch, whoever asked for it before, and leave nothing of us in the module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scripts_of_capture import run_python, watched

from traindoctor.capture.arming import located
from traindoctor.capture.import_hook import AfterImport
from traindoctor.capture.step_hooks import StepHooks
from traindoctor.record import open_record

NAME = "module_that_is_looked_up"

LOOKS_IT_UP = """
import importlib.util, sys
print([importlib.util.find_spec("torch").name for _ in range(3)], importlib.util.find_spec("torchh"))
import torch
print(type(torch.__loader__), torch.__spec__.loader is torch.__loader__, vars(torch.__loader__).keys())
print([type(finder) if not isinstance(finder, type) else finder for finder in sys.meta_path])
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item())
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    file = tmp_path / f"{NAME}.py"
    file.write_text("VALUE = 1\n")
    yield file
    sys.modules.pop(NAME, None)


def hooked() -> tuple[AfterImport, list[object]]:
    calls: list[object] = []
    hook = AfterImport(NAME, lambda: calls.append(sys.modules[NAME].VALUE))
    sys.meta_path.insert(0, hook)
    return hook, calls


def test_looking_a_module_up_is_not_importing_it(module: Path) -> None:
    hook, calls = hooked()
    for _ in range(3):
        spec = importlib.util.find_spec(NAME)
        assert spec is not None
        assert spec.origin == str(module)
    assert calls == []
    imported = importlib.import_module(NAME)
    assert calls == [1]
    assert hook not in sys.meta_path
    assert type(imported.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(imported.__loader__)
    assert imported.__spec__.loader is imported.__loader__
    importlib.reload(imported)
    assert calls == [1]


def test_an_import_that_fails_can_be_tried_again(module: Path) -> None:
    _, calls = hooked()
    module.write_text("raise ImportError('not yet')\n")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    assert calls == []
    module.write_text("VALUE = 'a longer file'\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert calls == ["a longer file"]


def test_threads_that_import_at_the_same_time_arm_once(module: Path) -> None:
    _, calls = hooked()
    together = threading.Barrier(6)

    def load(number: int) -> None:
        together.wait()
        if number % 2:
            importlib.util.find_spec(NAME)
        importlib.import_module(NAME)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


@pytest.mark.slow  # tests/field has a program of this kind
def test_a_script_that_asks_for_torch_first_is_watched(tmp_path: Path) -> None:
    """transformers and datasets do so when they are imported."""
    (tmp_path / "script.py").write_text(LOOKS_IT_UP)
    bare, ours = run_python(tmp_path, "script.py"), watched(tmp_path, "script.py")
    assert (ours.out, ours.status) == (bare.out, bare.status)
    assert open_record(tmp_path / "run").fact("run.steps") == 3


def test_whoever_leaves_inside_a_step_does_not_break_it() -> None:
    """torch runs over its table of hooks in that moment: an entry that goes is an error of the script's step."""
    hooks, heard = StepHooks(), []

    def before(optimizer: object, args: object, kwargs: object) -> None:
        heard.append("before")
        stop()

    def begin() -> None:
        nonlocal stop
        stop = hooks.hear(before, lambda *_: heard.append("after"))

    def stop() -> None:
        raise AssertionError("not heard yet")

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
    hooks.expect(begin)
    for _ in range(2):
        optimizer.step()
    assert heard == ["before"]
    hooks.expect_nothing()
    assert not hooks._handles


def test_the_script_is_found_from_any_folder(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path)
    settings = {"script": "train.py", "module": False}
    assert located(settings) == {**settings, "file": str(tmp_path / "train.py")}
    assert located({"script": "app"})["file"] == str(tmp_path / "app" / "__main__.py")
    for without in ({"script": "train", "module": True}, {"script": None}, {}):
        assert located(without) == without
