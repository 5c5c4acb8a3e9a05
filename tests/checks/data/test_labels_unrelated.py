from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.data.labels_unrelated import labels_unrelated
from traindoctor.record import make_record


def judge(
    z: float,
    loss: float,
    *,
    rows: float = 640,
    tokens: float = 10,
    agreement: float | None = None,
    steps: int = 80,
    held_out: float | None = 1.62,
) -> Outcome:
    series = {
        "relation.z": [z],
        "relation.rows": [rows],
        "loss.token": [loss] * steps,
        "ladder.unigram": [1.6] * steps,
        "batch.tokens": [32 * tokens] * steps,
        "batch.rows": [32.0] * steps,
    }
    if agreement is not None:
        series |= {"relation.agreement": [agreement], "relation.repeats": [400.0]}
    exams = {}
    if held_out is not None:
        exams["reference_model"] = {"guessing": 1.6, "held_out": held_out, "noise": 0.01}
    return labels_unrelated(make_record(series, exams=exams))


def test_fires_when_nothing_relates_and_the_loss_stays_on_the_labels_entropy() -> None:
    found = judge(1.1, 1.61)
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_silent_when_related_or_when_the_loss_has_left_the_level() -> None:
    assert isinstance(judge(45.0, 1.61), Clear)
    assert isinstance(judge(1.1, 0.9), Clear)


def test_parity_has_no_pairwise_relation_and_is_at_most_possible() -> None:
    found = judge(0.4, 1.61, tokens=3)
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_equal_inputs_with_other_labels_are_proof_even_for_short_rows() -> None:
    found = judge(0.4, 1.61, tokens=3, agreement=0.01)
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_too_early_is_not_judged() -> None:
    assert isinstance(judge(1.1, 1.61, rows=100), NotJudged)
    assert isinstance(judge(1.1, 1.61, steps=20), NotJudged)


def test_a_reference_model_that_learns_acquits_the_data() -> None:
    assert isinstance(judge(1.1, 1.61, held_out=0.7), Clear)
    assert isinstance(judge(1.1, 1.61, held_out=None), Finding)
    asked = judge(1.1, 1.61, tokens=3, held_out=None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"


def test_silent_when_the_loss_leaves_the_level_late_and_is_seldom_measured_there() -> None:
    series = {
        "relation.z": [0.6],
        "relation.rows": [640.0],
        "loss.token": [0.7] * 75,
        "ladder.unigram": [0.694] * 75,
        "loss.root": [0.7] * 150 + [0.45] * 90,
        "batch.tokens": [320.0] * 75,
        "batch.rows": [32.0] * 75,
    }
    assert isinstance(labels_unrelated(make_record(series)), Clear)
    series["loss.root"] = [0.7] * 240
    assert isinstance(labels_unrelated(make_record(series)), Finding)


def test_targets_of_other_rows_are_named() -> None:
    pair = {"dealt": {"shift": 1, "moved": 0.9, "compared": 700}, "line": "train.py:12"}
    found = labels_unrelated(
        make_record({"batch.rows": [12.0]}, exams={"shift": {"pairs": [pair]}})
    )
    assert isinstance(found, Finding)
    assert (found.status, found.line, found.since_step) == ("likely", "train.py:12", 0)
    apart = labels_unrelated(
        make_record({"batch.rows": [12.0]}, exams={"shift": {"pairs": [pair | {"dealt": None}]}})
    )
    assert isinstance(apart, NotJudged)


def test_examples_known_by_heart_are_told_from_learning_by_a_model_that_has_not_seen_them() -> None:
    """The loss ends a little under the entropy of the labels."""

    def ending(held_out: float | None) -> Outcome:
        steps = 120
        series = {
            "relation.z": [1.1],
            "relation.rows": [640.0],
            "loss.token": [1.6] * steps,
            "loss.root": [1.6] * 80 + [1.57] * 40,
            "ladder.unigram": [1.6] * steps,
            "batch.tokens": [320.0] * steps,
            "batch.rows": [32.0] * steps,
        }
        values = {"guessing": 1.6, "held_out": held_out, "noise": 0.01}
        return labels_unrelated(
            make_record(series, exams={} if held_out is None else {"reference_model": values})
        )

    asked = ending(None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"
    assert isinstance(ending(1.62), Finding)
    assert isinstance(ending(1.2), Clear)


def regression(share: float, held_out: float | None = None, noise: float = 0.02) -> Outcome:
    series = {
        "loss.squared": [share] * 60,
        "target.variance": [1.0] * 60,
        "batch.rows": [48.0] * 60,
    }
    tried = {"guessing": 1.0, "held_out": held_out, "noise": noise}
    exams = {} if held_out is None else {"reference_numbers": tried}
    return labels_unrelated(make_record(series, exams=exams))


def test_numbers_that_nobody_can_tell_from_the_inputs() -> None:
    assert isinstance(regression(0.2), Clear)
    asked = regression(1.0)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_numbers"
    assert isinstance(regression(1.0, held_out=1.02), Finding)
    assert isinstance(regression(0.85, held_out=0.92), Clear), "little can be known, and is told"
    assert isinstance(regression(0.85, held_out=0.97), Finding), "within the noise"
    assert isinstance(regression(1.0, held_out=0.6, noise=0.23), NotJudged), "nothing is excluded"
    assert isinstance(regression(1.0, held_out=0.3), Clear), (
        "the numbers are fine: something else is wrong"
    )


def test_targets_rolled_along_the_batch_belong_to_the_neighbouring_row() -> None:
    def judged(*, wrapped: bool, other_rows: float) -> Outcome:
        pair = {"input": "emb", "wrapped": wrapped, "axis": 1, "line": "train.py:5", "dealt": None}
        exams = {
            "shift": {"pairs": [pair]},
            "dependence": {"pairs": [{"input": "emb", "other_rows": other_rows}]},
        }
        return labels_unrelated(make_record({"batch.rows": [8.0] * 9}, exams=exams))

    found = judged(wrapped=True, other_rows=1.8)
    assert isinstance(found, Finding)
    assert found.line == "train.py:5"
    assert not isinstance(judged(wrapped=True, other_rows=0.0), Finding), "rolled along time"
    assert not isinstance(judged(wrapped=False, other_rows=1.8), Finding), "batch_first forgotten"


def just_under(*, again: bool) -> Outcome:
    """The loss ends 0.06 nats under the entropy of the labels."""
    series = {
        "relation.z": [1.2],
        "relation.rows": [640.0],
        "loss.token": [1.38] * 75,
        "ladder.unigram": [1.386] * 75,
        "loss.root": [1.38] * 150 + [1.326] * 90,
        "batch.tokens": [320.0] * 75,
        "batch.rows": [32.0] * 75,
        "batch.new_rows": [1.0] * 30 + [0.0 if again else 1.0] * 45,
    }
    reference = {"guessing": 1.386, "held_out": 1.41, "noise": 0.01}
    return labels_unrelated(make_record(series, exams={"reference_model": reference}))


def test_examples_that_come_again_are_known_by_heart_and_a_fresh_model_is_asked() -> None:
    assert isinstance(just_under(again=True), Finding)
    assert isinstance(just_under(again=False), Clear)


def test_a_faint_relation_is_for_a_model_to_judge() -> None:
    """z = 3.3 comes by chance, and of labels that a few words hint at."""
    asked = judge(3.3, 1.61, held_out=None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"
    found = judge(3.3, 1.61)
    assert isinstance(found, Finding)
    assert found.status == "likely"
    assert isinstance(judge(3.3, 1.61, held_out=1.2), Clear)


def by_heart(
    *, first_pass: float = 1.6, end: float = 1.4, held_out: float | None = 1.9, z: float = 0.6
) -> Outcome:
    """A run of six passes over the same 1056 examples, one label each; it knows them better from pass to pass."""
    steps = 198
    loss = [first_pass] * 33 + [1.6 + (end - 1.6) * (step - 33) / 120 for step in range(33, 198)]
    series = {
        "relation.z": [z],
        "relation.rows": [640.0],
        "loss.token": loss,
        "loss.root": loss,
        "ladder.unigram": [1.6] * steps,
        "batch.tokens": [320.0] * steps,
        "batch.rows": [32.0] * steps,
        "batch.new_rows": [1.0] * 33 + [0.0] * 165,
        "target.total": [32.0] * steps,
    }
    exams = {}
    if held_out is not None:
        exams["reference_model"] = {"guessing": 1.6, "held_out": held_out, "noise": 0.01}
    return labels_unrelated(make_record(series, exams=exams))


def test_what_is_only_known_by_heart_does_not_acquit_the_labels() -> None:
    found = by_heart()
    assert isinstance(found, Finding)
    assert found.status == "likely"
    asked = by_heart(held_out=None)
    assert isinstance(asked, NotJudged)
    assert asked.wants == "reference_model"


def test_learning_before_any_example_comes_again_acquits_them() -> None:
    assert isinstance(by_heart(first_pass=1.5), Clear)
    assert isinstance(by_heart(held_out=1.2), Clear)
    assert isinstance(by_heart(end=0.5), Clear)
    assert isinstance(by_heart(z=30.0), Clear)
