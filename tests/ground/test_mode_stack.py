"""Seats on torch's stack of function modes: none is left over, whenever a handler leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from traindoctor.capture.watch import Watch
from traindoctor.ground import quiet
from traindoctor.ground.mode_stack import Seat
from traindoctor.record import open_record


def seats() -> int:
    return sum(isinstance(mode, Seat) for mode in _get_current_function_mode_stack())


def test_a_seat_hears_functions_until_it_is_left() -> None:
    heard = []

    def handler(func: Any, args: Any, kwargs: Any) -> Any:
        heard.append(func.__name__)
        return func(*args, **kwargs)

    seat = Seat.take(handler)
    torch.ones(2).add(1)
    assert seats() == 1
    seat.leave()
    torch.ones(2).mul(1)
    assert seats() == 0
    assert "add" in heard
    assert "mul" not in heard


def test_a_handler_that_leaves_inside_a_function_gives_its_seat_to_the_next() -> None:
    heard: list[str] = []

    def second(func: Any, args: Any, kwargs: Any) -> Any:
        heard.append(func.__name__)
        return func(*args, **kwargs)

    taken: list[Seat] = []

    def first(func: Any, args: Any, kwargs: Any) -> Any:
        taken.pop().leave()  # torch will put the seat back
        taken.append(Seat.take(second))
        return func(*args, **kwargs)

    taken.append(Seat.take(first))
    torch.ones(2).add(1)
    torch.ones(2).mul(1)
    assert seats() == 1
    taken.pop().leave()
    assert seats() == 0
    assert heard[-1] == "mul"


def test_a_script_without_modules_or_optimizer_leaves_no_mode_behind(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table, head = (torch.randn(12, 12, requires_grad=True) for _ in range(2))
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    most = 0
    try:
        for step in range(150):
            x = torch.randint(12, (8,), generator=torch.Generator().manual_seed(step))
            loss = F.cross_entropy(table[x].tanh() @ head, (x + 1) % 12)
            table.grad = head.grad = None
            loss.backward()
            most = max(most, len(_get_current_function_mode_stack()))
            with torch.no_grad():
                for p in (table, head):
                    p -= 0.1 * p.grad
    finally:
        watch.close(0)
    assert most <= 1
    assert seats() == 0
    record = open_record(tmp_path)
    assert record.fact("run.backwards") == 150
    assert not [note.text for note in record.notes if note.level == "fault"]
    assert 2 <= len(watch.patient.tapes) <= 20, "some steps are taped, not all of them"


def test_a_seat_goes_back_under_the_context_that_lay_on_it() -> None:
    seat = Seat.take(lambda func, args, kwargs: func(*args, **kwargs))
    with torch.device("meta"):
        assert seat.aside()
        assert seat.aside()  # it is aside already
        assert seats() == 0
        seat.back()
        assert isinstance(_get_current_function_mode_stack()[0], Seat)
        assert torch.ones(2).device.type == "meta"
    assert seats() == 1
    assert torch.ones(2).device.type == "cpu"
    seat.leave()
    assert seats() == 0


def test_a_seat_left_while_it_is_aside_stays_away() -> None:
    seat = Seat.take(lambda func, args, kwargs: func(*args, **kwargs))
    assert seat.aside()
    seat.leave()
    seat.back()
    assert seats() == 0
    assert not Seat.left


def test_our_own_calls_do_not_pass_through_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bool] = []
    hear = Seat.__torch_function__

    def counted(self: Seat, *args: Any) -> Any:
        heard.append(quiet.active())
        return hear(self, *args)

    monkeypatch.setattr(Seat, "__torch_function__", counted)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    watch = Watch(tmp_path)
    watch.attach()
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    watch.close()
    # What runs in the event that starts a tape, and in functions that are tapped, is all that is left.
    assert heard.count(False) > 10
    assert heard.count(True) < heard.count(False)


def test_the_scripts_own_modes_are_left_as_they_were_entered(tmp_path: Path) -> None:
    """A tape that begins inside such a context lies below it: on top it would be taken off in its stead."""
    heard: list[str] = []

    class Own(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            heard.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    watch = Watch(tmp_path)
    watch.attach()
    try:
        for _ in range(3):
            with Own():
                loss = model(torch.ones(2, 4)).square().mean()
            assert not [m for m in _get_current_function_mode_stack() if isinstance(m, Own)]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        watch.close(0)
    assert heard.count("square") == 3
    assert [len(tape.roots) for tape in watch.patient.tapes.values()] == [1, 1, 1]


@pytest.mark.parametrize("handled", [True, False])
def test_what_the_script_put_in_torchs_place_is_called_once(
    monkeypatch: pytest.MonkeyPatch, handled: bool
) -> None:
    """torch's own function names itself to a mode by its name, where the script's function stands by now."""
    loss, distance, backward = F.cross_entropy, F.l1_loss, torch.Tensor.backward
    calls: list[str] = []

    def twice(*args, **kwargs):
        calls.append("loss")
        return 2 * loss(*args, **kwargs)

    def half(*args, **kwargs):  # torch's leaves a default out where it names itself
        calls.append("distance")
        return distance(*args, **kwargs) / 2

    def thrice(self, *args, **kwargs):
        calls.append("backward")
        return backward(3 * self, *args, **kwargs)

    monkeypatch.setattr(F, "cross_entropy", twice)
    monkeypatch.setattr(F, "l1_loss", half)
    monkeypatch.setattr(torch.Tensor, "backward", thrice)
    x, y = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
    seat = Seat.take(lambda func, args, kwargs: func(*args, **kwargs))
    try:
        if not handled:
            seat.handler = None
        (F.cross_entropy(x, y) + F.l1_loss(x, torch.ones(4, 3))).backward()
    finally:
        seat.leave()
    meant = 6 * loss(x, y) + 1.5 * distance(x, torch.ones(4, 3))
    (expected,) = torch.autograd.grad(meant, x)
    torch.testing.assert_close(x.grad, expected)
    assert calls == ["loss", "distance", "backward"]
