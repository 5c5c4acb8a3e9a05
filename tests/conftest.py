"""For all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traindoctor import background


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    """A record that a test leaves open is written no further: its thread would be waited for at every later fork."""
    yield
    for one in list(background._all):
        one.stop()
