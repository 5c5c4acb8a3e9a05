"""The loop: it learns, a resumed run equals an uninterrupted one bit for bit, an interruption loses nothing."""

from __future__ import annotations

import csv
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from traindoctor.errors import CheckpointError, TraindoctorError
from traindoctor.lm import checkpoint, choices, loop
from traindoctor.lm.callbacks import Callbacks, Plan, Progress, Validation
from traindoctor.lm.distributed import World
from traindoctor.lm.loop import train
from traindoctor.lm.sources import load_config


def weights(run: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_file(checkpoint.choose(run, which) / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def column(run: Path, name: str) -> list[str]:
    with (run / "metrics.csv").open() as file:
        return [row[name] for row in csv.DictReader(file) if row[name]]


def test_it_learns_and_leaves_a_whole_run(tmp_path: Path, tiny: Any) -> None:
    plans: list[Plan] = []
    seen: list[Progress] = []
    validations: list[Validation] = []
    outcome = train(
        tmp_path,
        tiny(steps=60, eval_every=20, lr=1e-2),
        Callbacks(on_plan=plans.append, on_progress=seen.append, on_validation=validations.append),
    )
    losses = [float(x) for x in column(tmp_path, "loss")]
    assert len(losses) == 60
    assert losses[0] == pytest.approx(plans[0].expected_first_loss, abs=0.3)
    assert outcome.best_loss < losses[0] - 2
    assert (outcome.reason, outcome.step) == ("finished", 60)
    assert seen[-1].share == 1.0
    assert [v.step for v in validations] == [20, 40, 60]
    for name in ("config.json", "tokenizer.json", "data/meta.json", "samples/step-00000060.txt"):
        assert (tmp_path / name).exists()
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize(
    "changes", [{}, {"dropout": 0.2, "accumulation": 2}, {"epochs": 1.0, "batch": 16}]
)
def test_resumed_equals_uninterrupted_bit_for_bit(
    tmp_path: Path, tiny: Any, changes: dict[str, Any]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = tiny(save_every=5, eval_every=5, **changes)
    train(whole, config)

    def stop_at_seven(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def count(*_: Any) -> None:
            count.steps += 1  # type: ignore[attr-defined]
            if count.steps == 7:  # type: ignore[attr-defined]
                raise RuntimeError("the power goes out")

        count.steps = 0  # type: ignore[attr-defined]
        optimizer.register_step_post_hook(count)

    with pytest.raises(RuntimeError, match="the power goes out"):
        train(parts, config, Callbacks(on_ready=stop_at_seven))
    assert checkpoint.checkpoints(parts)[-1].name == "step-00000005"
    train(parts, config)
    assert same(weights(whole), weights(parts))
    assert column(whole, "loss") == column(parts, "loss")
    assert column(whole, "val_loss") == column(parts, "val_loss")
    assert column(whole, "step") == column(parts, "step")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_from_there(
    tmp_path: Path, tiny: Any, number: signal.Signals
) -> None:
    def interrupt(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_post_hook(lambda *_: os.kill(os.getpid(), number))

    before = signal.getsignal(number)
    outcome = train(tmp_path, tiny(), Callbacks(on_ready=interrupt))
    assert (outcome.reason, outcome.step) == ("interrupted", 1)
    assert signal.getsignal(number) is before
    assert train(tmp_path, tiny()).reason == "finished"
    assert column(tmp_path, "step").count("0") == 1


def copy_of(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["tokenizer.json", "data/meta.json"])
def test_a_resumed_run_never_makes_its_tokens_anew(
    trained: Path, tmp_path: Path, name: str
) -> None:
    run = copy_of(trained, tmp_path)
    (run / name).unlink()
    with pytest.raises(CheckpointError, match="is gone: put it back"):
        train(run, load_config(run / "config.json"))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{bro"])
def test_damaged_metrics_do_not_stop_a_resumed_run(
    trained: Path, tmp_path: Path, content: bytes
) -> None:
    run = copy_of(trained, tmp_path)
    (run / "metrics.csv").write_bytes(content)
    config = load_config(run / "config.json")
    assert train(run, config.replace(steps=13)).step == 13
    assert column(run, "step")[0] == "12"


def test_damaged_facts_of_the_tokens_are_told(trained: Path, tmp_path: Path) -> None:
    run = copy_of(trained, tmp_path)
    (run / "data" / "meta.json").write_text("[]")
    with pytest.raises(CheckpointError, match="put them back"):
        train(run, load_config(run / "config.json"))


@pytest.mark.parametrize("changes", [{"width": 10**6, "heads": 1}, {"batch": 10**9}])
def test_a_run_far_beyond_the_memory_is_refused_before_it_is_built(
    tmp_path: Path, tiny: Any, changes: dict[str, int]
) -> None:
    with pytest.raises(TraindoctorError, match="this run needs about"):
        train(tmp_path, tiny(**changes))


def test_accumulated_passes_equal_one_large_batch(tmp_path: Path, tiny: Any) -> None:
    train(tmp_path / "one", tiny(batch=8, steps=4))
    train(tmp_path / "two", tiny(batch=4, accumulation=2, steps=4))
    one, two = ([float(x) for x in column(tmp_path / n, "loss")] for n in ("one", "two"))
    assert one == pytest.approx(two, abs=1e-5)


def test_samples_and_validation_do_not_touch_the_run(tmp_path: Path, tiny: Any) -> None:
    train(tmp_path / "often", tiny(eval_every=2, dropout=0.1))
    train(tmp_path / "never", tiny(eval_every=100, sample_tokens=0, dropout=0.1))
    assert same(weights(tmp_path / "often"), weights(tmp_path / "never"))


def test_the_last_and_the_best_checkpoints_are_kept(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(loop.Training, "validation_loss", lambda self: next(losses))
    outcome = train(tmp_path, tiny(eval_every=2, keep=2))
    names = [p.name[-2:] for p in checkpoint.checkpoints(tmp_path)]
    assert names == ["04", "10", "12"]
    assert checkpoint.choose(tmp_path, "best").name == "step-00000004"
    assert (outcome.best_step, outcome.best_loss) == (4, 1.0)


def test_early_stop(tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(loop.Training, "validation_loss", lambda self: next(losses))
    outcome = train(tmp_path, tiny(eval_every=2, patience=2))
    assert (outcome.reason, outcome.step) == ("early-stop", 8)


def test_minutes_end_the_run(tmp_path: Path, tiny: Any) -> None:
    outcome = train(tmp_path, tiny(minutes=0.01, sample_tokens=0))
    assert outcome.reason == "finished"
    assert 0.5 < outcome.seconds < 30


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path, tiny: Any) -> None:
    def poison(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            next(model.parameters()).fill_(math.nan)

    with pytest.raises(TraindoctorError, match="the loss became nan at step 0"):
        train(tmp_path, tiny(), Callbacks(on_ready=poison))


def test_out_of_memory_becomes_advice(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(loop.Training, "step", no_memory)
    with pytest.raises(TraindoctorError, match=r"--batch 2 --accumulation 2"):
        train(tmp_path, tiny())


def test_a_full_disk_is_one_sentence_and_the_run_survives(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, tiny(steps=4))
    before = weights(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(TraindoctorError, match="No space left on device"):
        train(tmp_path, tiny(steps=8))
    assert same(weights(tmp_path), before)
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_told_and_the_older_one_named(
    tmp_path: Path, tiny: Any, name: str
) -> None:
    train(tmp_path, tiny(steps=8, sample_tokens=0))
    file = checkpoint.checkpoints(tmp_path)[-1] / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged .* to go on from step-00000004"):
        train(tmp_path, tiny(steps=12, sample_tokens=0))


def test_checkpoints_of_another_shape_are_refused(tmp_path: Path, tiny: Any) -> None:
    train(tmp_path, tiny(steps=4))
    with pytest.raises(CheckpointError, match="belongs to other settings"):
        train(tmp_path, tiny(steps=4, width=64))


def test_the_fused_loss_gives_the_same_curve(tmp_path: Path, tiny: Any) -> None:
    for name in ("off", "on"):
        train(tmp_path / name, tiny(fused_loss=name, steps=8))
    off, on = ([float(x) for x in column(tmp_path / n, "loss")] for n in ("off", "on"))
    assert on == pytest.approx(off, abs=1e-4)


@pytest.mark.parametrize(
    ("device", "precision", "compiled", "fused"),
    [
        ("cpu", "float32", True, False),  # torch.compile fuses the plain loss by itself
        ("cuda", "float32", True, False),
        ("cuda", "bf16", True, True),  # the kernel is faster than what it makes
        ("cuda", "bf16", False, True),
    ],
)
def test_the_fused_loss_under_torch_compile(
    tiny: Any, device: str, precision: str, compiled: bool, fused: bool
) -> None:
    config = tiny(precision=precision, compile=compiled)
    world = World(device=torch.device(device))
    assert choices.Choices.of(config, world, 50257, needs_logits=False).fused_loss is fused


def test_the_fused_loss_is_chosen_for_large_vocabularies_unless_logits_are_looked_at(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[bool] = []

    def ready(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        chosen.append(model.fused_loss)

    for classes, needs_logits in ((10**6, False), (10, False), (10, True)):
        monkeypatch.setattr(choices, "FUSED_CLASSES", classes)
        train(
            tmp_path / str(len(chosen)),
            tiny(steps=1, sample_tokens=0),
            Callbacks(on_ready=ready, needs_logits=needs_logits),
        )
    assert chosen == [False, True, False]
