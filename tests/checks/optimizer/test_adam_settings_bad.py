from __future__ import annotations

import pytest

from traindoctor.checks.base import Clear, Finding, NotApplicable, NotJudged
from traindoctor.checks.optimizer.adam_settings_bad import EXAM, adam_settings_bad
from traindoctor.record import ExamResult, Record, make_record


def experiment(usual: float) -> dict:
    def one(loss: float) -> dict:
        return {"loss": loss, "blown": False, "losses": []}

    return {
        "start": 0,
        "steps": 40,
        "before": 4.6,
        "control": one(4.4),
        "permuted": [one(4.41), one(4.4)],
        "variants": {"usual Adam settings": one(usual)},
        "fidelity": 0.0,
    }


def record(betas=(0.9, 0.999), eps: float = 1e-8, under: float = 0.0, exams=()) -> Record:
    group = {"betas": list(betas), "eps": eps}
    return make_record(
        {"optim.lr": [1e-3] * 20},
        facts={"optimizer.groups": [{"class": "Adam", "groups": [group]}]},
        layers={"adam.under_eps": {"a": [under] * 3, "b": [under] * 3}},
        exams=exams or {},
    )


@pytest.mark.parametrize(
    ("betas", "eps", "under"),
    [
        ((0.999, 0.9), 1e-8, 0.0),
        ((0.9, 0.999999), 1e-8, 0.0),
        ((0.9, 0.05), 1e-8, 0.0),
        ((0.9, 0.999), 0.1, 1.0),
    ],
)
def test_odd_settings_are_tried_and_named_when_the_usual_ones_win(betas, eps, under) -> None:
    asked = adam_settings_bad(record(betas, eps, under))
    assert isinstance(asked, NotJudged | Finding)
    assert asked.wants == EXAM
    found = adam_settings_bad(record(betas, eps, under, {EXAM: experiment(3.6)}))
    assert isinstance(found, Finding)
    assert isinstance(adam_settings_bad(record(betas, eps, under, {EXAM: experiment(4.4)})), Clear)


@pytest.mark.parametrize(
    ("betas", "eps", "under"),
    [
        ((0.9, 0.95), 1e-8, 0.0),
        ((0.0, 0.999), 1e-6, 0.9),
        ((0.9, 0.98), 1e-9, 0.0),
        ((0.9, 0.999), 1e-3, 0.1),
    ],
)
def test_published_recipes_are_clear(betas, eps, under) -> None:
    assert isinstance(adam_settings_bad(record(betas, eps, under)), Clear)


def test_reverse_order_is_likely_even_without_an_experiment() -> None:
    refused = [ExamResult(EXAM, 0, "refused", {}, "no tape")]
    found = adam_settings_bad(record((0.999, 0.9), exams=refused))
    assert isinstance(found, Finding)
    assert found.status == "likely"
    assert isinstance(adam_settings_bad(record((0.9, 0.05), exams=refused)), NotJudged)


def test_sgd_has_no_such_settings() -> None:
    sgd = make_record(
        {"optim.lr": [0.1] * 20},
        facts={"optimizer.groups": [{"class": "SGD", "groups": [{"lr": 0.1}]}]},
    )
    assert isinstance(adam_settings_bad(sgd), NotApplicable)


def test_an_eps_above_every_denominator_is_likely_before_it_is_tried() -> None:
    found = adam_settings_bad(record(eps=0.1, under=1.0))
    assert isinstance(found, Finding)
    assert (found.status, found.wants) == ("likely", EXAM)
    assert isinstance(adam_settings_bad(record(eps=1e-3, under=0.6)), NotJudged)


def test_a_large_eps_is_tried_where_the_moments_could_not_be_read() -> None:
    asked = adam_settings_bad(record(eps=0.5, under=float("nan")))
    assert isinstance(asked, NotJudged)
    assert asked.wants == EXAM
