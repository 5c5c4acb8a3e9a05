"""Snapshots after the first minute: each is paid for with all the steps that are heard for it."""

from __future__ import annotations

from traindoctor.capture.budget import UP_FRONT_SECONDS, Governor
from traindoctor.capture.keeping import EVERY, SHARE_OF_SNAPSHOTS, Keeping
from traindoctor.experiment.patient import Patient


def test_a_snapshot_waits_until_the_last_one_is_a_part_of_what_was_earned() -> None:
    governor = Governor(0.02)
    keeping = Keeping(Patient(), governor, lambda who, error: None)
    assert keeping.keeper is not None
    keeping.heard(1.0)
    assert keeping.keeper.allowed(EVERY)  # in the first minute its first use is all that counts
    while governor.early:
        governor.end_step(0.1)
    seconds = UP_FRONT_SECONDS
    while not keeping.keeper.allowed(EVERY):
        governor.end_step(0.1)
        seconds += 0.1
    assert 1.0 <= SHARE_OF_SNAPSHOTS * 0.02 * seconds < 1.01
