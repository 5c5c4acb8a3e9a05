from __future__ import annotations

from traindoctor.checks.base import Clear, Finding, NotJudged
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


def test_texts_without_labels_are_not_judged() -> None:
    assert isinstance(data_not_shuffled(make_record({"loss.token": [1.0]})), NotJudged)
