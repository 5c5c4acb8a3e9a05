"""What stands beneath Triton's launcher, on launchers of the forms that Triton has had."""

from __future__ import annotations

from typing import Any

from traindoctor.kernels.launch import beneath

BETWEEN = ("function", "metadata", None, None, None)
ARGUMENTS = (16, 32, 8, True)


class Flat:
    """Passes the kernel's arguments on as they are, behind its own (Triton 3.6)."""

    global_scratch_size = 0
    profile_scratch_size = 0

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.launch = lambda *values: self.calls.append(values)

    def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
        self.launch(x, y, z, stream, function, False, False, None, None, *rest)


class Packed(Flat):
    """Packs them in a tuple (Triton 3.9)."""

    def __call__(self, x: int, y: int, z: int, stream: int, function: Any, *rest: Any) -> None:
        self.launch(x, y, z, stream, function, rest[:4], rest[4:])


class WithRoom(Flat):
    """Allocates room at each launch."""

    global_scratch_size = 128


def launched(launcher: Any) -> tuple[bool, tuple[Any, ...]]:
    """(Whether the launcher itself is left out, what the innermost function got)."""
    call, between = beneath(launcher, BETWEEN, ARGUMENTS)
    assert not launcher.calls, "to look is not to launch"
    call(7, 1, 1, 99, *between, *ARGUMENTS)
    (values,) = launcher.calls
    return call is not launcher, values


def test_the_innermost_function_gets_what_the_launcher_would_hand_it() -> None:
    direct, values = launched(Flat())
    through = Flat()
    through(7, 1, 1, 99, *BETWEEN, *ARGUMENTS)
    assert direct
    assert values == through.calls[0]


def test_a_launcher_that_does_more_is_called_itself() -> None:
    assert not launched(Packed())[0]
    assert not launched(WithRoom())[0]
