"""The script's text in a record: read as data, without its secrets, and never a reason to fail."""

from __future__ import annotations

import ast
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traindoctor.record import RecordWriter, open_record, script_text
from traindoctor.record.script_text import MOST_TEXT, redact_source
from traindoctor.record.script_text import script_text as text_of

RANDOM = "aB3xK9mQ2pL7vN4tR8wZ"
KEY = "hf_" + "aB3xK9mQ2pL7vN4t"

# In each `hunter2x` or a key stands where a secret does.
SECRET = [
    'password = "hunter2x"',
    "api_key='hunter2x'",
    'login(user="me", token="hunter2x")',
    'token: str = "hunter2x"',
    'def f(a: int, auth_token: Optional[str] = "hunter2x"): pass',
    'settings = {"lr": 0.1, "password": "hunter2x"}',
    'os.environ["WANDB_API_KEY"] = "hunter2x"',
    'os.environ.setdefault("HF_TOKEN", "hunter2x")',
    'parser.add_argument("--db-password", type=str, default="hunter2x")',
    'api_key = (\n    "hunter2x"\n    "more"\n)',
    'secret = r"hunter2x"',
    'secret = """hunter2x"""',
    'secret = b"hunter2x"',
    'url = "https://me:hunter2x@host/data"',
    'url = "https://host/data?token=hunter2x"',
    'header = "Bearer hunter2xyz"',
    'if token == "hunter2x": pass',
    "x = 1  # password: hunter2x",
    f'anything = "{KEY}"',
    f'say("a key {RANDOM} inside")',
    f"x = 1  # {KEY}",
    f'f(f"{{x}} {KEY} {{y}}")',
]
ORDINARY = [
    "token = tokenizer.encode(text)",
    "tokens, key, auth = model(x), cache[0], None",
    "next_token = logits.argmax(-1)",
    'tokenizer.pad_token = "<pad>"',
    'batch = {"token": ids, "password": None}',
    'columns = ["token", "label"]',
    "optimizer = AdamW(model.parameters(), lr=1e-3)  # 3 times the usual",
    'key = "train"',
    'sorted(rows, key=lambda row: row["length"])',
    'url = "https://host/data.txt"',
    'commit = "393f8f3aa0d7b1c2e4f5a6b7c8d9e0f1a2b3c4d5"',
    "abcdefghijklmnopqrstuvwxyz = 'abcdefghijklmnopqrstuvwxyz0123456789'",
]


@pytest.mark.parametrize("source", SECRET)
def test_secrets_are_left_out(source: str) -> None:
    shown, places = redact_source(f"import os\n{source}\nlast = 1\n")
    assert places >= 1
    assert "[redacted]" in shown
    assert not [secret for secret in ("hunter2", KEY, RANDOM) if secret in shown]
    assert shown.startswith("import os\n")
    assert shown.endswith("\nlast = 1\n")
    ast.parse(shown)


@pytest.mark.parametrize("source", ORDINARY)
def test_ordinary_code_stays(source: str) -> None:
    assert redact_source(source) == (source, 0)


@given(st.text(alphabet="ab=:,'\"()[]{}#\\ \n\t\u00e4token", max_size=80))
def test_any_text_can_be_looked_at(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.py"
    file.write_text(text, encoding="utf-8", newline="")
    fact = text_of(file)
    assert fact is not None
    assert fact["bytes"] == len(text.encode())


def test_the_project_s_own_files_stay_python() -> None:
    """Names of secrets stand all over the file that looks for them."""
    source = Path(script_text.__file__).read_text(encoding="utf-8")
    shown, _ = redact_source(source)
    assert ast.dump(ast.parse(shown)).count("FunctionDef") == source.count("\ndef ")


def test_text_size_and_hash(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    content = b"\xef\xbb\xbfx = 1\r\nprint('\xc3\xa4')\r\n"
    file.write_bytes(content)
    assert text_of(file, name="train.py") == {
        "path": "train.py",
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "text": "x = 1\nprint('ä')\n",
        "redacted": 0,
    }


def test_the_hash_of_a_text_with_a_secret_gives_nothing_away(tmp_path: Path) -> None:
    facts = []
    for password in ("hunter2x", "hunter3x"):
        file = tmp_path / "train.py"
        file.write_text(f'password = "{password}"\n')
        facts.append(text_of(file))
    assert facts[0] == facts[1]
    assert facts[0] is not None
    assert facts[0]["redacted"] == 1


def test_a_long_script_is_told_by_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text("#" * MOST_TEXT)
    assert "text" in (text_of(file) or {})
    file.write_text("#" * (MOST_TEXT + 1))
    fact = text_of(file)
    assert fact is not None
    assert set(fact) == {"path", "bytes", "sha256"}


def test_what_is_no_text_has_no_fact(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"# coding: latin-1\nx = '\xe4'\n")
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("latin.py", "pipe.py", "missing.py", ".", "a\0b"):
        assert text_of(tmp_path / name) is None


def test_source_that_cannot_be_read_as_python_is_told_by_its_hash(tmp_path: Path) -> None:
    """Secrets in it could not be found."""
    file = tmp_path / "broken.py"
    file.write_text("x = (\n'''password")
    assert set(text_of(file) or {}) == {"path", "bytes", "sha256"}


def test_a_record_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text('if True:\n\tx = "\x1b[31m"\napi_key = "hunter2x"\n')
    writer = RecordWriter(tmp_path / "run")
    writer.fact("script.text", text_of(file, name="train.py"))
    writer.close()
    fact = open_record(tmp_path / "run").fact("script.text")
    assert fact["text"] == 'if True:\n\tx = "\\x1b[31m"\napi_key = "[redacted]"\n'
