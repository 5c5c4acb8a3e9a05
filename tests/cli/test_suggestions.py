"""Mistyped commands, options, causes and codes lead to the right ones."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from traindoctor.cli import cli, main
from traindoctor.errors import TraindoctorError


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["traindoctor", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "--bugdet", "3", "x.py"], "Did you mean '--budget'?"),
        (["check", "--secnds", "3", "x.py"], "'--seconds'"),
        (["train", "--stepz", "3"], "Did you mean '--steps'?"),
        (["diagnos", "x"], "No such command 'diagnos'. Did you mean 'diagnose'?"),
        (["train.py", "--lr", "1"], "Did you mean 'traindoctor run train.py'?"),
        (["frobnicate"], "'traindoctor --help' lists them."),
        (["explain", "missing-zero-gard"], "did you mean missing-zero-grad?"),
        (["explain", "GRD01"], "did you mean GRD001?"),
    ],
)
def test_did_you_mean(words: list[str], hint: str, monkeypatch, capsys) -> None:
    assert hint in said(monkeypatch, capsys, *words)


def test_what_is_far_away_is_not_suggested(monkeypatch, capsys) -> None:
    text = said(monkeypatch, capsys, "run", "--bugdet", "3", "x.py")
    assert "--out" not in text
    assert "Did you mean" not in said(monkeypatch, capsys, "run", "--xyzzy", "x.py")


def test_an_unknown_command_is_an_error_of_use() -> None:
    result = CliRunner().invoke(cli, ["rnu"], standalone_mode=False)
    assert isinstance(result.exception, click.UsageError)
    assert not isinstance(result.exception, TraindoctorError)


def test_bash_completes_commands_options_and_causes() -> None:
    script = (
        'eval "$(_TRAINDOCTOR_COMPLETE=bash_source traindoctor)"\n'
        'try() { COMP_WORDS=("$@"); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=();'
        ' _traindoctor_completion traindoctor; echo "${COMPREPLY[*]}"; }\n'
        "try traindoctor diag\ntry traindoctor run --bud\ntry traindoctor explain missing\n"
    )
    binaries = str(sys.executable).rpartition("/")[0]
    done = subprocess.run(
        ["bash", "-c", f'PATH="{binaries}:$PATH"\n{script}'], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["diagnose", "--budget", "missing-zero-grad"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("run tr", "file,tr"),
        ("run train.py da", "file,da"),
        ("run --out ru", "file,ru"),
        ("run --verify-fix fi", "file,fi"),
        ("check tr", "file,tr"),
        ("compare ref.py tr", "file,tr"),
        ("diagnose ru", "file,ru"),
        ("train --data bo", "file,bo"),
        ("explain GRD001", "plain,GRD001"),
        ("run --board ten", "plain,tensorboard"),
    ],
)
def test_what_names_a_file_is_completed_as_one(line: str, offered: str, monkeypatch) -> None:
    words = f"traindoctor {line}"
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_TRAINDOCTOR_COMPLETE", "bash_complete")
    ended = CliRunner().invoke(cli, prog_name="traindoctor")
    assert ended.output.split() == [offered]


def test_help_says_how_to_switch_completion_on() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    for shell in ("bash", "zsh", "fish"):
        assert f"_TRAINDOCTOR_COMPLETE={shell}_source traindoctor" in output
