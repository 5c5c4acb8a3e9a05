"""What looks like a secret is not recorded, and ordinary arguments are left alone."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.record import RecordWriter, open_record
from traindoctor.record.secrets import REDACTED, looks_random, redact_arguments, redact_text

SECRETS = [
    ["--api-key", "hunter2"],
    ["--api_key=hunter2"],
    ["--wandb.api_key=0123456789abcdef0123456789abcdef01234567"],
    ["--openaiApiKey", "hunter2"],
    ["WANDB_API_KEY=hunter2"],
    ["--password", "12345678"],
    ["--db-password=hunter2 and more"],
    ["--hub-token", "hunter2"],
    ["--token=hunter2"],
    ["token=hunter2", "x=1"],
    ["--auth", "me:hunter2"],
    ["--aws-secret", "hunter2"],
    ["--credentials", '{"user": "hunter2"}'],
    ["--headers", '{"Authorization": "Bearer hunter2hunter2"}'],
    ["--config", '{"password": "hunter2"}'],
    ["--url", "postgres://me:hunter2@db/experiments"],
    ["--url=https://hunter2@host/path"],
    ["--endpoint", "https://host/?token=hunter2&step=3"],
    ["hf_hunter2hunter2hunter2"],
    ["--note", "with sk-hunter2hunter2hunter2 inside"],
    ["ghp_hunter2hunter2"],
    ["--x=github_pat_11hunter2hunter2"],
]
ORDINARY = [
    ["--lr", "3e-4"],
    ["--tokenizer", "gpt2", "--tokenizer=bpe", "--tokenizer-path", "data/tok.json"],
    ["--max-tokens", "100", "--num-tokens=5000", "--tokens", "train.bin"],
    ["--key-dim", "64", "--num-key-value-heads", "8", "--sort-key", "length", "--text-key=content"],
    ["--pad-token", "<pad>", "--eos-token=</s>", "--pad-token-id", "0", "--token-type", "word"],
    ["--use-auth-token", "true", "--token", "false"],
    ["--author", "Ada", "--authors=x"],
    ["--seed", "1234567890123456789"],
    ["--commit", "9fceb02d0ae598e95dc970b74767f19372d61af8"],
    ["--sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"],
    ["--run-id", "123e4567-e89b-12d3-a456-426614174000"],
    ["--model", "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct-GPTQ-Int4"],
    ["--class", "transformers.models.llama.modeling_llama.LlamaForCausalLMWithValueHead"],
    ["--out", "/home/ada/runs/2026-11-17_15-30-00/checkpoint-5000", "--data=C:\\data\\train.txt"],
    ["--password-file", "secrets.txt", "--secret-name", "wandb"],
    ["optimizer.lr=0.1", "model.layers=[1,2,3]", "+trainer.max_epochs=3", "hf_transformers_model"],
    ["--url", "https://huggingface.co/datasets/roneneldan/TinyStories"],
    ["-1", "--", "-v", "", "=", "a=b=c"],
]


@pytest.mark.parametrize("arguments", SECRETS, ids=" ".join)
def test_secrets_are_left_out(arguments: list[str]) -> None:
    shown = redact_arguments(arguments)
    assert "hunter2" not in " ".join(shown)
    assert "0123456789abcdef" not in " ".join(shown)
    assert any(REDACTED in argument for argument in shown)
    assert len(shown) == len(arguments)


@pytest.mark.parametrize("arguments", ORDINARY, ids=lambda a: " ".join(a)[:40])
def test_ordinary_arguments_stay(arguments: list[str]) -> None:
    assert redact_arguments(arguments) == arguments


WORDS = st.sampled_from(
    "train data model layers lr seed width head out step size max dim key".split()
)
# `--key` by itself may be a secret or a column: what mixes letters and digits is left out.
NAME = st.lists(WORDS, min_size=1, max_size=3).map("-".join).filter(lambda name: name != "key")
VALUE = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.lists(WORDS, min_size=1, max_size=4).map("/".join),
    st.lists(WORDS, min_size=1, max_size=4).map("_".join),
    st.binary(min_size=4, max_size=32).map(bytes.hex),
    st.uuids().map(str),
    st.dates().map(str),
)


@settings(deadline=None)
@given(st.lists(st.tuples(NAME, VALUE), max_size=5))
def test_no_ordinary_pair_is_touched(pairs: list[tuple[str, str]]) -> None:
    apart = [part for name, value in pairs for part in (f"--{name}", value)]
    assert redact_arguments(apart) == apart
    joined = [f"--{name}={value}" for name, value in pairs]
    assert redact_arguments(joined) == joined


@settings(deadline=None)
@given(st.text(min_size=1), st.sampled_from(["--password", "--api-key", "--client-secret"]))
def test_whatever_stands_behind_a_secret_name_goes(value: str, name: str) -> None:
    if not value.startswith("-") and len(value) > 7:
        assert redact_arguments([name, value]) == [name, REDACTED]


@settings(deadline=None)
@given(st.lists(st.text()))
def test_any_arguments_can_be_looked_at(arguments: list[str]) -> None:
    shown = redact_arguments(arguments)
    assert len(shown) == len(arguments)
    assert redact_arguments(shown) == shown


def test_random_strings_are_seen() -> None:
    rng = random.Random(0)
    letters = string.ascii_letters + string.digits
    drawn = ["".join(rng.choices(letters, k=rng.randint(24, 64))) for _ in range(1000)]
    assert sum(map(looks_random, drawn)) > 970


def test_a_note_keeps_its_text() -> None:
    text = "ValueError: step 3 of train.py:12, loss=2.5, key=value"
    assert redact_text(text) == text
    assert redact_text("401 for https://me:pw@host") == "401 for https://[redacted]@host"


def test_nothing_of_a_secret_is_in_the_record(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path)
    argv = ["--api-key", "hunter2", "--url", "https://me:hunter2@host", "--lr", "0.1"]
    writer.fact("script", {"path": "train.py", "argv": argv})
    writer.note("fault", "cannot reach https://me:hunter2@host")
    writer.close()
    assert b"hunter2" not in (tmp_path / "record-0.sqlite").read_bytes()
    shown = open_record(tmp_path).fact("script")["argv"]
    assert shown == ["--api-key", REDACTED, "--url", "https://[redacted]@host", "--lr", "0.1"]
