"""Below a part that fails, down to the innermost module whose own backward pass is wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hand_written import VOCABULARY, nested_patient, operator_patient

from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.gradient.backward_incorrect import backward_incorrect
from traindoctor.checkup import checkup
from traindoctor.exams import layers_alone as modules
from traindoctor.exams import load
from traindoctor.experiment.patient import Patient
from traindoctor.record import ExamResult, make_record

GUILTY = "1.1.mix.1"


def exams(patient: Patient, *names: str) -> list[ExamResult]:
    made = [load(name)(patient) for name in names]
    assert all(result.done for result in made), made
    return made


@pytest.mark.parametrize("seen", [False, True])
def test_a_module_two_deep_is_named_where_its_function_passes_alone(seen: bool) -> None:
    # The Function is right at its first call: the second one is four columns and a rest of two wide.
    patient = nested_patient(8, 6, seen=seen)
    before = exams(patient, "tape_gradient", "functions_alone", "finite_difference")
    whole, alone, differences = (result.values for result in before)
    assert [f["difference"] < 1e-4 for f in alone["functions"]] == [True]
    assert (whole["difference"] > 0.01) is seen
    assert differences["outcome"] == "wrong"

    asked = backward_incorrect(make_record(exams=before))
    assert isinstance(asked, NotJudged)
    assert asked.wants == "guilty_module"
    [result] = exams(patient, "guilty_module")
    values = result.values
    assert (values["module"], values["outcome"]) == (GUILTY, "wrong")
    assert values["difference"] > 10 * values["noise"]
    assert values["hand_written"] == ["TiledSquare"]
    # Whatever lies outside of what failed is not asked about: the first block's parts pass with it.
    assert not any(row["module"].startswith("1.0.") for row in values["wrong"])

    found = backward_incorrect(make_record(exams=[*before, result]))
    assert isinstance(found, Finding)
    assert (found.where, found.status) == (GUILTY, "confirmed")
    assert found.evidence[0].value == values["difference"]
    assert found.line is not None
    assert found.line.startswith("hand_written.py:")


@pytest.mark.parametrize("seen", [False, True])
def test_a_sound_model_is_one_question(seen: bool) -> None:
    patient = nested_patient(8, 4, seen=seen)
    results = exams(
        patient, "tape_gradient", "functions_alone", "finite_difference", "guilty_module"
    )
    values = results[-1].values
    assert (values["module"], values["outcome"]) == (None, "pass")
    assert values["difference"] < values["noise"]
    assert values["tested"] == 2  # the model, the loss
    assert isinstance(backward_incorrect(make_record(exams=results)), Clear)


def test_each_wrong_module_is_listed_and_only_the_innermost() -> None:
    values = load("guilty_module")(nested_patient(6, 7)).values
    assert {row["module"] for row in values["wrong"]} == {"1.0.mix.1", GUILTY}
    assert values["difference"] == max(row["difference"] for row in values["wrong"])


def test_an_operator_that_alone_decides_nothing_is_placed_by_its_module() -> None:
    patient = operator_patient(1.5)
    before = exams(patient, "tape_gradient", "finite_difference")
    alone = {"functions": [{"name": "square", "line": None, "test": "none"}]}
    before.insert(1, ExamResult("functions_alone", 0, "done", alone))
    guess = backward_incorrect(make_record(exams=before))
    assert isinstance(guess, Finding)
    # It stands as it is, and asks on: should there be no time, nothing is lost.
    assert (guess.where, guess.status, guess.wants) == ("square", "likely", "guilty_module")
    found = backward_incorrect(make_record(exams=[*before, *exams(patient, "guilty_module")]))
    assert isinstance(found, Finding)
    assert (found.where, found.status, found.wants) == ("squared", "confirmed", None)


def test_what_there_was_no_time_for_is_not_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "SECONDS", -1.0)
    values = load("guilty_module")(nested_patient(8, 6)).values
    assert (values["module"], values["outcome"], values["tested"]) == (None, "undecided", 0)
    assert "(model)" in values["untested"]


def test_gradients_changed_on_purpose_have_no_guilty_module() -> None:
    patient = nested_patient(8, 6, seen=True)
    results = exams(patient, "tape_gradient", "functions_alone", "guilty_module")
    [function] = results[1].values["functions"]
    # A second Function, of which no test could say whether it is right, keeps the question open.
    other = {**function, "name": "Other", "outcome": "undecided"}
    meant = {**function, "surrogate": True}
    results[1] = ExamResult("functions_alone", 0, "done", {"functions": [meant, other]})
    outcome = backward_incorrect(make_record(exams=results))
    assert isinstance(outcome, NotJudged)
    assert outcome.wants is None


@pytest.mark.parametrize(("width", "verdict"), [(6, "sick"), (8, "healthy")])
def test_a_checkup_goes_down_by_itself(width: int, verdict: str) -> None:
    model = nested_patient(8, width).model
    assert model is not None
    made = checkup(
        model,
        [torch.randint(VOCABULARY, (4, 5)) for _ in range(4)],
        lambda model, x: F.cross_entropy(model(x).flatten(0, 1), (3 * x + 1).flatten() % 7),
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        steps=4,
        seconds=300.0,  # a limit, not a target: a crowded machine must come to the end too
    )
    assert made.diagnosis.verdict == verdict
    asked = made.asked.get("guilty_module", set())
    if verdict == "healthy":
        assert asked == set()
        return
    root = made.diagnosis.root
    assert root is not None
    assert (root.cause, root.where) == ("backward-incorrect", GUILTY)
    assert asked == {"backward-incorrect"}
