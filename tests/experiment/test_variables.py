"""Data that no tap sees is found in the variables of the functions that are running."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import UserDict

import torch
from torch import Tensor

from traindoctor.experiment import variables
from traindoctor.experiment.variables import MAX_BYTES, data_variables
from traindoctor.ground.nested import tensors_in


def found() -> dict[tuple[int, int], Tensor]:
    return {(number, place): tensor for number, place, tensor in data_variables()}


def one_step(value: float) -> dict[tuple[int, int], Tensor]:
    targets = torch.full((3,), value)
    pair = (targets + 1, {"not": "looked into"})
    batch = {"mask": targets > 1}
    scores = torch.ones(3, requires_grad=True) * 2
    whole = torch.zeros(MAX_BYTES)
    number = torch.ones(())
    seen = found()
    assert all(scores is not t and whole is not t and number is not t for t in seen.values())
    assert all(any(t is one for t in seen.values()) for one in (targets, pair[0], batch["mask"]))
    return seen


def test_a_variable_is_known_again_at_the_next_step() -> None:
    first, second = one_step(1.0), one_step(2.0)
    common = first.keys() & second.keys()
    values = {(float(first[k].double().mean()), float(second[k].double().mean())) for k in common}
    assert {(1.0, 2.0), (2.0, 3.0), (0.0, 1.0)} <= values


def test_what_the_script_lets_go_is_gone() -> None:
    def step() -> weakref.ref[Tensor]:
        batch = torch.zeros(10)
        scores = torch.zeros(10, requires_grad=True) + 1
        assert found()
        gone = weakref.ref(scores), weakref.ref(batch)
        del batch, scores
        assert [ref() for ref in gone] == [None, None]
        return gone[0]

    gc.disable()
    try:
        step()
    finally:
        gc.enable()


def test_only_the_script_s_own_functions_are_looked_into(monkeypatch) -> None:
    held = torch.zeros(5)
    assert any(t is held for t in found().values())
    monkeypatch.setattr(variables, "kind_of", lambda _: "library")
    assert not found()
    assert sys.getrefcount(held) <= 4


def test_no_method_of_the_scripts_own_containers_is_called() -> None:
    class Refuses:
        def refuse(self, *args: object) -> object:
            raise AssertionError("the script's code was called")

        values = items = __getitem__ = __iter__ = __reversed__ = __len__ = refuse

    class Table(Refuses, dict):  # type: ignore[misc]
        pass

    class Row(Refuses, list):  # type: ignore[misc]
        pass

    class Batch(Refuses, UserDict):  # type: ignore[misc]
        def __init__(self, data: dict[str, Tensor]) -> None:
            self.data = data

    table, row, _batch = Table(), Row(), Batch({"x": torch.full((3,), 7.0)})
    dict.update(table, x=torch.full((3,), 5.0))
    list.append(row, torch.full((3,), 6.0))
    assert {5.0, 6.0, 7.0} <= {float(tensor.double().mean()) for tensor in found().values()}
    assert [float(tensor[0]) for tensor in tensors_in((table, row))] == [5.0, 6.0]


class Loader(list[int]):
    """Anything that ends something when the last variable lets go of it: workers, files."""


def test_nothing_that_a_variable_held_is_kept() -> None:
    loader = Loader([1, 2])
    gone, batch = weakref.ref(loader), torch.ones(3)
    assert any(tensor is batch for tensor in found().values())
    del loader
    assert gone() is None


def test_what_the_script_asked_for_by_locals_stays_its_own() -> None:
    loader, batch = Loader([1, 2]), torch.ones(3)
    mine = locals()
    assert any(tensor is batch for tensor in found().values())
    assert mine["loader"] is loader
    assert mine["batch"] is batch
