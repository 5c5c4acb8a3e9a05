"""One bound for all copies, and room for a test where the script's own peak leaves it."""

from __future__ import annotations

import pytest

from traindoctor.ground import memory as module
from traindoctor.ground.memory import LEAST, SHARE, Memory, Peak


def test_the_bound_is_a_share_of_the_process_or_what_the_user_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory()
    monkeypatch.setattr(module, "host_bytes_used", lambda: 100 << 20)
    assert memory.bound == LEAST
    monkeypatch.setattr(module, "host_bytes_used", lambda: 100 << 30)
    assert memory.bound == int(SHARE * (100 << 30))
    memory.limit = 5
    assert memory.bound == 5


def test_what_is_held_leaves_less_room() -> None:
    memory = Memory()
    memory.limit = 100
    memory.holders = [lambda: 30, lambda: 50]
    assert memory.room() == 20
    memory.holders.append(lambda: 90)
    assert memory.room() == 0


def test_a_test_may_use_what_the_script_needs_within_a_step() -> None:
    peak = Peak()
    assert peak.left(peak=1000, used=400, held=0, bound=50) == 650
    peak.process = 1300  # our own test raised it
    assert peak.left(peak=1300, used=400, held=0, bound=50) == 650
    assert peak.left(peak=1300, used=1100, held=0, bound=50) == 0  # it left that behind
    assert peak.left(peak=2000, used=400, held=0, bound=50) == 1350  # the script took more itself
    assert peak.left(peak=2100, used=400, held=100, bound=50) == 1350  # these were our copies
