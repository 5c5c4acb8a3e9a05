from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged, Outcome
from traindoctor.checks.data.data_not_shuffled import data_not_shuffled
from traindoctor.record import make_record


def test_fires_on_classes_in_order() -> None:
    found = data_not_shuffled(make_record({"order.label_z": [467.0], "order.neighbour_z": [12.0]}))
    assert isinstance(found, Finding)
    assert found.status == "likely"


def test_silent_on_shuffled_and_balanced_batches() -> None:
    assert isinstance(data_not_shuffled(make_record({"order.label_z": [1.9]})), Clear)
    assert isinstance(data_not_shuffled(make_record({"order.label_z": [-68.0]})), Clear)


def test_batches_of_one_task_in_random_order_are_at_most_possible() -> None:
    found = data_not_shuffled(make_record({"order.label_z": [60.0], "order.neighbour_z": [0.3]}))
    assert isinstance(found, Finding)
    assert found.status == "possible"


def regression(
    z: float = 100.0, follow: float = 7.0, loss: float = 2.7, round_: int | None = 50
) -> Outcome:
    steps = range(200)
    return data_not_shuffled(
        make_record(
            {
                "order.number_z": [z],
                "order.number_neighbour_z": [follow],
                "loss.squared": [2.7] * 40,
                "target.variance": [1.0] * 40,
                "loss.root": [2.7] * 150 + [loss] * 50,
                "batch.rowset": [float(i if round_ is None else i % round_) for i in steps],
            }
        )
    )


def test_numbers_in_order_that_come_again_in_it_and_are_not_learned() -> None:
    found = regression()
    assert isinstance(found, Finding)
    assert found.status == "likely"
    assert isinstance(regression(z=2.0), Clear)
    assert isinstance(regression(follow=1.0), Clear)


def test_a_stream_has_an_order_of_its_own() -> None:
    found = regression(round_=None)
    assert isinstance(found, Finding)
    assert found.status == "possible"


def test_an_order_that_lets_a_regression_learn_is_no_fault() -> None:
    assert isinstance(regression(loss=0.3), Clear)


def test_texts_without_labels_are_not_judged() -> None:
    assert isinstance(data_not_shuffled(make_record({"loss.token": [1.0]})), NotJudged)
