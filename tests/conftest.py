"""For all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traindoctor import background
from warm_python import WarmPython


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Starts programs whose start is not what is tested."""
    made = WarmPython()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind() -> Iterator[None]:
    """A record that a test leaves open is written no further: its thread would be waited for at every later fork."""
    yield
    for one in list(background._all):
        one.stop()
