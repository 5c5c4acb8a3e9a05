"""Whose dropout lies on the way to the targets: only a model that stays as it is counts as a teacher."""

from __future__ import annotations

import pytest
from planted import taught

from traindoctor.exams.frozen_targets import frozen_targets


def test_a_frozen_teacher_in_training_mode() -> None:
    values = frozen_targets(taught()).values
    assert values["unchanged"] is True
    assert (values["dropouts"], values["answers"], values["weights"]) == (1, 1.0, 2)


def test_a_moving_average_changes() -> None:
    assert frozen_targets(taught("average")).values["unchanged"] is False


def test_an_ensemble_of_passes_drops_on_purpose() -> None:
    assert frozen_targets(taught("ensemble")).values["answers"] == 4.0


@pytest.mark.parametrize(("role", "training"), [("features", True), ("teacher", False)])
def test_features_and_teachers_at_rest_have_no_dropout_in_the_targets(
    role: str, training: bool
) -> None:
    assert frozen_targets(taught(role, training=training)).values["dropouts"] == 0


def test_it_is_asked_again_before_the_weights_were_seen_twice() -> None:
    assert frozen_targets(taught(steps=5)).outcome == "refused"
