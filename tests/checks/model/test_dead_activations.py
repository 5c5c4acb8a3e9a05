from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.model.dead_activations import dead_activations
from traindoctor.record import make_record


def judge(*dead: float, tokens: int = 500) -> Outcome:
    layers = [
        {"dead": d, "tokens": tokens, "module": f"act{i}", "line": None} for i, d in enumerate(dead)
    ]
    return dead_activations(make_record(exams={"dead_units": {"layers": layers}}))


def test_fires_on_a_whole_layer() -> None:
    found = judge(0.1, 1.0)
    assert isinstance(found, Finding)
    assert found.where == "act1"


def test_silent_on_parts_of_a_layer() -> None:
    assert isinstance(judge(0.27, 0.53), Clear)


def test_few_tokens_prove_nothing() -> None:
    assert isinstance(judge(1.0, tokens=4), NotJudged)
