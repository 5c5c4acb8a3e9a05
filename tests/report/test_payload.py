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
    loss_payload,
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
    known, unknown = with_pages(verdict, make_record())["causes"]
    assert known["docs"] == BY_SLUG[slug].docs
    assert known["code"] == BY_SLUG[slug].code
    assert unknown == {"cause": "of-another-version"}


SCRIPT = "\n".join(f"line {n}" for n in range(1, 101))


def test_only_the_lines_around_the_one_named_leave_the_script() -> None:
    facts = {"script.text": {"path": "dir/train.py", "text": SCRIPT}}
    cause = {"cause": "clip-too-tight", "line": "/somewhere/train.py:54"}
    payload = run_payload(
        make_record(facts=facts), name="x", state="ended", verdict={"causes": [cause]}
    )
    (shown,) = payload["verdict"]["causes"]
    assert [(line["number"], line["meant"]) for line in shown["source"]] == [
        (52, False),
        (53, False),
        (54, True),
        (55, False),
        (56, False),
    ]
    text = json.dumps(payload)
    assert "line 54" in text
    assert "line 51" not in text


def test_a_line_of_another_file_has_no_text() -> None:
    facts = {"script.text": {"path": "train.py", "text": SCRIPT}}
    verdict = {"causes": [{"cause": "clip-too-tight", "line": "model.py:54"}]}
    (shown,) = with_pages(verdict, make_record(facts=facts))["causes"]
    assert shown["source"] == []


def test_no_clipping_is_no_number_that_went_wrong() -> None:
    """The page drew a band of NaN over each run that does not clip."""
    none = float("nan")
    record = make_record({"grad.norm": [1.0, 2.0], "clip.limit": [none, none]})
    payload = run_payload(record, name="x", state="ended", verdict=None)
    assert "clip.limit" not in payload["series"]
    now_and_then = make_record({"clip.limit": [none, 1.0]})
    coded = series_payload(now_and_then, ["clip.limit"], points=100)["clip.limit"]
    assert coded == {"steps": [0, 1], "values": [None, 1.0]}


def test_every_test_is_told_by_its_title() -> None:
    verdict = {"ruled_out": [{"cause": "missing-zero-grad", "by": "x"}], "untested": ["odd"]}
    shown = with_pages(verdict, make_record())
    assert shown["ruled_out"][0]["title"] == BY_SLUG["missing-zero-grad"].title
    assert shown["untested"] == ["odd"]


def test_a_loss_that_is_no_number_is_named() -> None:
    nan = float("nan")
    record = make_record({"loss.root": [2.0, 1.0, nan, nan]})
    assert loss_payload(record) == {
        "measure": "loss.root",
        "step": 3,
        "value": "NaN",
        "bad_since": 2,
    }
    assert loss_payload(make_record()) is None


def test_exams_are_told_in_plain_words() -> None:
    done = {"difference": 0.0, "noise": 1e-6}
    record = make_record(exams={"tape_gradient": done, "of_another_version": {}})
    known, unknown = run_payload(record, name="x", state="ended", verdict=None)["exams"]
    assert known["title"] == "gradient by autograd"
    assert known["measured"]["value"] == 0.0
    assert (unknown["title"], unknown["measured"]) == ("of another version", None)


def test_long_facts_keep_their_head() -> None:
    short = shorten({"list": list(range(1000))})
    assert len(short["list"]) == 401
    assert short["list"][-1] == "... 600 more"
