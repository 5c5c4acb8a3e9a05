"""Settings: sources in order, impossible shapes as one sentence, resuming."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traindoctor.errors import CheckpointError, ConfigError
from traindoctor.lm.config import ModelConfig, RunConfig
from traindoctor.lm.files import write_json
from traindoctor.lm.presets import PRESETS
from traindoctor.lm.sources import build, load_config, read_toml, resolve, resumed, settings


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "tiny"\nsteps = 7\n[model]\nwidth = 96\n[train]\neval-every = 3\n')
    config = resolve(file=file, given={"steps": 9})
    assert config.preset == "tiny"
    assert config.model.layers == PRESETS["tiny"][1]["layers"]
    assert (config.model.width, config.train.eval_every, config.train.steps) == (96, 3, 9)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_possible(name: str) -> None:
    assert resolve(preset=name).preset == name


def test_every_setting_has_a_line_of_help() -> None:
    names = [setting.name for setting in settings()]
    assert sorted(names) == sorted(RunConfig().flat())
    assert all(len(setting.text) > 5 for setting in settings())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 3, "width": 128}, "3 heads do not divide a width of 128"),
        ({"heads": 4, "kv_heads": 3}, "key/value heads do not divide"),
        ({"heads": 128, "width": 128}, "even head size"),
        ({"heads": 0}, "--heads must be at least 1"),
        ({"steps": -5}, "--steps must be at least 1, not -5"),
        ({"steps": "many"}, "--steps must be a whole number"),
        ({"lr": 0.0}, "--lr must be a number above 0"),
        ({"lr": float("nan")}, "--lr must be a finite number"),
        ({"dropout": 1.0}, "--dropout"),
        ({"tokenizer": "syllable"}, "char, word, bpe"),
        ({"lr": float("inf")}, "--lr must be a finite number"),
        ({"minutes": float("inf")}, "--minutes must be a finite number"),
        ({"weight_decay": float("nan")}, "--weight-decay must be a finite number"),
        ({"seed": 2**70}, "--seed must be at least 0 and at most"),
        ({"tokenizer": "bpe", "vocab_size": 100}, "at least 256, not 100"),
        ({"tokenizer": "char", "vocab_size": 100}, "at least 257, not 100"),
        ({"tokenizer": "word", "vocab_size": 1}, "at least 2, not 1"),
        ({"epochs": 1, "minutes": 1}, "give one of them"),
        ({"layer": 2}, "did you mean 'layers'"),
        ({"compile": 1}, "true or false"),
    ],
)
def test_impossible_settings_are_one_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(changes)


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'huge': choose one of tiny, small"):
        resolve(preset="huge")


def test_a_bad_settings_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match="cannot read the settings"):
        read_toml(file)
    file.write_text("steps = = 3")
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_toml(file)
    file.write_text("[model]\nsteps = 3\n")
    with pytest.raises(ConfigError, match=r"'steps' belongs to the table \[train\], not \[model\]"):
        read_toml(file)
    file.write_text("preset = ['tiny']\n")
    with pytest.raises(ConfigError, match="there is no preset"):
        resolve(file=file)
    file.write_text("[optimizer]\nlr = 1.0\n")
    with pytest.raises(ConfigError, match=r"no table \[optimizer\]"):
        read_toml(file)


@hypothesis.settings(deadline=None)
@given(st.sampled_from(sorted(PRESETS)), st.integers(1, 99), st.floats(1e-6, 1.0, allow_nan=False))
def test_stored_settings_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, preset: str, steps: int, lr: float
) -> None:
    config = resolve(preset=preset, given={"steps": steps, "lr": lr, "data": ("a", "b")})
    file = tmp_path_factory.mktemp("config") / "config.json"
    write_json(file, config.to_dict())
    assert load_config(file) == config


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run"):
        load_config(tmp_path / "config.json")
    for text, words in (
        ("{bro", "cannot be read"),
        ("{}", "does not hold"),
        ("[]", "does not hold"),
    ):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CheckpointError, match=words):
            load_config(tmp_path / "config.json")


def test_resume_may_change_the_length_but_not_the_run() -> None:
    stored = resolve(given={"steps": 10})
    assert resumed(stored, {"steps": 20}).train.steps == 20
    assert resumed(stored, {"width": 128}) == stored
    with pytest.raises(ConfigError, match=r"--width 128 \(now 256\)"):
        resumed(stored, {"width": 256, "steps": 20})


def test_the_length_is_said_once_and_the_last_word_counts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--steps 10 and --epochs 2 all say how long"):
        resolve(given={"steps": 10, "epochs": 2})
    file = tmp_path / "run.toml"
    file.write_text("epochs = 2\n")
    assert resolve(file=file).train.epochs == 2
    assert resolve(file=file, given={"steps": 10}).train.epochs == 0
    by_the_clock = resolve(given={"minutes": 5})
    assert resumed(by_the_clock, {"steps": 10}).train.minutes == 0


def test_epochs_mean_exact_epochs_unless_said_otherwise() -> None:
    assert resolve(given={"epochs": 2}).data.sampling == "epochs"
    assert resolve(given={"epochs": 2, "sampling": "random"}).data.sampling == "random"


def test_parameter_count_of_gpt2_is_the_published_one() -> None:
    shape = {"layers": 12, "heads": 12, "width": 768, "block": 1024, "bias": True}
    config = ModelConfig(**shape, norm="layer", positions="learned", mlp="gelu")
    assert config.num_parameters(50257) == 124_439_808


def test_the_gelu_of_older_runs_stays_the_approximation(tmp_path: Path) -> None:
    stored = build({"mlp": "gelu"}).to_dict()
    write_json(tmp_path / "config.json", stored)
    assert load_config(tmp_path / "config.json").model.mlp == "gelu"
    write_json(tmp_path / "config.json", {**stored, "format": 1})
    assert load_config(tmp_path / "config.json").model.mlp == "gelu-tanh"
