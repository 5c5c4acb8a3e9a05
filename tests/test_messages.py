"""What users read about a cause: one reviewed list, in words of the field and none of our own."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from traindoctor.checks import CHECKS
from traindoctor.exams import EXAMS

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("messages", ROOT / "tools" / "messages.py")
assert spec is not None
assert spec.loader is not None
messages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(messages)

# Names of series and facts (`loss.token`), words of the code, and turns that are no English.
OURS = re.compile(
    r"\b(loss|grad|optim|batch|order|relation|update|mode|clip|time|ladder|param|logits)\.[a-z_]+\b(?!\()"
    r"|^(" + "|".join(EXAMS) + r"):"
    r"|\bexams?\b|\btape[ds]?\b|\bprobes?\b|\bpatient\b|hangs? on|has not \{\} points|was not recorded"
)
# torch's own names that look like ours.
TORCHS = {"loss.backward", "loss.item", "grad.zero_", "clip.grad_norm_"}


@pytest.mark.parametrize("title", messages.sections())
def test_no_word_of_ours_reaches_the_user(title: str) -> None:
    for sentence in messages.sections()[title]:
        found = [hit.group() for hit in OURS.finditer(sentence) if hit.group() not in TORCHS]
        assert not found, f"{title}: {sentence}"


def test_a_cause_is_ruled_out_by_a_sentence_not_by_the_name_of_a_test() -> None:
    """Whatever is put into a sentence: `{EXAM}: no better` would be read as `experiment_clip: no better`."""
    source = ROOT / "src" / "traindoctor" / "checks"
    for file in source.rglob("*.py"):
        for call in re.findall(r"\.clear\(\s*(.*)", file.read_text(encoding="utf-8")):
            assert not re.search(r"\{(EXAM|LONG|TOKENS|NUMBERS)\}", call), f"{file.name}: {call}"
    assert len(CHECKS) > 40


def test_the_list_is_complete_and_up_to_date() -> None:
    listed = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    assert listed == messages.document(), "run `make docs` and read what changed"
    for sentence in ("the script does not clip", "no step could be repeated"):
        assert sentence in listed
