"""What the page is given."""

from __future__ import annotations

import json

import numpy as np

from made_runs import healthy_verdict, make_run, sick_verdict
from traindoctor.checks import BY_SLUG
from traindoctor.record import Series, make_record, open_record
from traindoctor.report.payload import (
    CLIPPED,
    in_order,
    run_payload,
    series_payload,
    shorten,
    with_pages,
)


def test_a_run_is_plain_json(tmp_path) -> None:
    record = open_record(make_run(tmp_path / "run", steps=30))
    payload = run_payload(record, name="run", state="ended", verdict=sick_verdict(30))
    json.dumps(payload, allow_nan=False)
    assert payload["steps"] == 30
    assert payload["layers"]["update.ratio"]["measured"]
    assert CLIPPED in payload["series"]
    assert {exam["exam"] for exam in payload["exams"]} == {
        "tape_gradient",
        "causality",
        "counterfactual",
    }


def test_nan_and_infinity_are_named_not_dropped() -> None:
    record = make_record({"loss.root": [1.0, float("nan"), float("inf"), -float("inf")]})
    coded = series_payload(record, ["loss.root"], points=100)["loss.root"]
    assert coded["values"] == [1.0, None, None, None]
    assert coded["bad"] == [[1, "NaN"], [2, "inf"], [3, "-inf"]]


def test_clipped_steps_are_those_over_the_limit() -> None:
    record = make_record(
        {"grad.norm": [0.5, 2.0, 1.00001, 3.0], "clip.limit": [1.0, 1.0, 1.0, float("nan")]}
    )
    coded = series_payload(record, [CLIPPED], points=400)[CLIPPED]
    assert coded["values"] == [0.0, 1.0, 0.0, 0.0]


def test_a_resumed_run_shows_the_later_value() -> None:
    resumed = in_order(Series("x", np.array([0, 1, 2, 1, 2, 3]), np.array([0.0, 1, 2, 10, 20, 30])))
    assert resumed.steps.tolist() == [0, 1, 2, 3]
    assert resumed.values.tolist() == [0, 10, 20, 30]


def test_causes_come_with_their_page() -> None:
    slug = next(iter(BY_SLUG))
    verdict = {**healthy_verdict(1), "causes": [{"cause": slug}, {"cause": "of-another-version"}]}
    known, unknown = with_pages(verdict)["causes"]
    assert known["docs"] == BY_SLUG[slug].docs
    assert known["code"] == BY_SLUG[slug].code
    assert unknown == {"cause": "of-another-version"}


def test_long_facts_keep_their_head() -> None:
    short = shorten({"list": list(range(1000))})
    assert len(short["list"]) == 401
    assert short["list"][-1] == "... 600 more"
