from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged, Outcome
from traindoctor.checks.generation.greedy_repetition import greedy_repetition
from traindoctor.record import make_record


def judge(greedy: float, sampled: float, *, temperature: float = 0.0, data: float = 0.0) -> Outcome:
    exam = {
        name: {"loops": v} for name, v in (("greedy", greedy), ("sampled", sampled), ("data", data))
    }
    facts = {"text.samples": [{"text": "a a a a", "temperature": temperature}]}
    return greedy_repetition(make_record(facts=facts, exams={"generation": exam}))


def test_fires_when_only_greedy_texts_loop() -> None:
    assert isinstance(judge(0.9, 0.0), Finding)


def test_silent_when_sampling_when_data_loop_and_when_nothing_loops() -> None:
    assert isinstance(judge(0.9, 0.0, temperature=0.8), Clear)
    assert isinstance(judge(0.9, 0.0, data=0.8), Clear)
    assert isinstance(judge(0.1, 0.0), Clear)
    assert isinstance(judge(0.9, 0.9), Clear)  # not the decoding


def test_runs_that_write_no_text_are_not_judged() -> None:
    assert isinstance(greedy_repetition(make_record()), NotJudged)
    watched = make_record(facts={"env": {"device": "cpu"}})
    assert isinstance(greedy_repetition(watched), NotApplicable)
