"""Programs about which a false word was said once, through the real runner: it is not said again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warm_python import warm_run

SCRIPT = Path(__file__).parent / "scripts" / "false_words.py"

# Sound programs, and what was said about each of them once.
SOUND = {
    "clipped_before_an_update_by_hand": "clip-ineffective",
    "an_encoder_decoder_that_copies": "causal-mask-leak",
    "a_graph_attention_network": "loss-gradient-mismatch residual-missing",
    "a_gradient_cache": "missing-zero-grad",
    "attention_sinks": "attention-softmax-wrong-dim",
    "a_decision_transformer": "targets-misaligned",
    "a_policy_gradient": "lr-too-high",
    "a_frequent_class": "padding-in-loss",
    "two_stages_with_other_labels": "data-not-shuffled",
    "heavy_outliers": "labels-unrelated",
    "scaled_embeddings": "init-too-large",
    "cosine_attention_with_its_temperature": "attention-scale-wrong",
}
# Called healthy or left open once.
SICK = {
    "a_rate_a_hundred_times_too_high": "lr-too-high",
    "a_leak_behind_a_loss_by_hand": "causal-mask-leak",
}


def verdict_on(name: str, folder: Path) -> dict[str, Any]:
    """However slow the machine is, there is time for every test."""
    command = ["-m", "traindoctor", "run", "--budget", "50", "--after", "60", "--quiet"]
    command += ["--out", str(folder / "run"), "--json", str(folder / "v.json"), str(SCRIPT), name]
    warm_run(command, folder=folder)
    said: dict[str, Any] = json.loads((folder / "v.json").read_text())
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "once"), SOUND.items(), ids=list(SOUND))
def test_a_sound_program_is_not_called_sick(tmp_path: Path, name: str, once: str) -> None:
    said = verdict_on(name, tmp_path)
    named = {cause["cause"] for cause in said["causes"]}
    assert not named & set(once.split())
    assert said["verdict"] != "sick", said["causes"]
    assert said["steps"] >= 100


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cause"), SICK.items(), ids=list(SICK))
def test_a_sick_one_is_named(tmp_path: Path, name: str, cause: str) -> None:
    said = verdict_on(name, tmp_path)
    assert said["verdict"] == "sick"
    assert said["causes"][0]["cause"] == cause


def test_waiting_for_data_is_worth_saying_and_no_disease(tmp_path: Path) -> None:
    said = verdict_on("an_autoencoder_that_waits_for_data", tmp_path)
    assert said["verdict"] == "healthy"
    assert said["causes"] == []
    assert [advice["cause"] for advice in said["advice"]] == ["input-pipeline-bound"]


def test_one_step_is_not_enough_to_be_healthy(tmp_path: Path) -> None:
    said = verdict_on("stopped_after_one_step", tmp_path)
    assert said["verdict"] == "inconclusive"
    assert said["steps"] == 1
    assert "1 step" in said["reason"]
