"""What `load_state_dict` leaves behind, on real modules; what the script gets is what it gets without us."""

from __future__ import annotations

import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from traindoctor.capture.hub import hub
from traindoctor.capture.watch import Watch
from traindoctor.probes.loaded_weights import MOST_LOADS, LoadedWeights, common_prefixes
from traindoctor.record import open_record

State = Mapping[str, Tensor]


def net() -> nn.Module:
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(8, 3)))


def train(model: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()


def trained() -> dict[str, Tensor]:
    """Of a model whose every tensor is another than a new one's."""
    model = net()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor += 1
    return dict(model.state_dict())


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in trained().items()}


def rows(folder: Path, script: Callable[[], object]) -> list[dict[str, Any]] | None:
    watch = Watch(folder, replay=False, probes=[LoadedWeights()], budget=1.0)
    watch.attach()
    try:
        script()
    finally:
        watch.close(0)
        hub.reset()
    assert not watch.faults
    return open_record(folder).fact("weights.loaded")


def after(folder: Path, load: Callable[[nn.Module], object]) -> list[dict[str, Any]] | None:
    """The rows of a new model that is loaded and then trained."""

    def script() -> None:
        model = net()
        load(model)
        train(model)

    return rows(folder, script)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "a.prefix.of.my.own."])
def test_every_tensor_stands_behind_a_prefix(tmp_path: Path, prefix: str) -> None:
    told = after(tmp_path, lambda model: model.load_state_dict(prefixed(prefix), strict=False))
    assert told is not None
    assert told[0].pop("line").startswith("test_loaded_weights.py:")
    assert told == [
        {
            "module": "Sequential",
            "asked": 10,  # BatchNorm counts its batches anew
            "given": 11,
            "loaded": 0,
            "pairs": 10,
            "own_prefix": "",
            "given_prefix": prefix,
            "left": 10,
            "step": 0,
        }
    ]


def test_the_state_of_a_wrapped_model(tmp_path: Path) -> None:
    wrapped = nn.DataParallel(net())
    told = after(tmp_path, lambda model: model.load_state_dict(wrapped.state_dict(), strict=False))
    assert told is not None
    assert (told[0]["given_prefix"], told[0]["pairs"]) == ("module.", 10)


def test_a_bare_state_in_a_wrapper(tmp_path: Path) -> None:
    def script() -> None:
        model = nn.DataParallel(net())
        model.load_state_dict(trained(), strict=False)
        train(model)

    told = rows(tmp_path, script)
    assert told is not None
    assert (told[0]["own_prefix"], told[0]["given_prefix"]) == ("module.", "")
    assert told[0]["left"] == 10


def test_a_part_of_the_model_that_is_renamed(tmp_path: Path) -> None:
    state = {name.replace("body.", "backbone."): t for name, t in trained().items()}
    told = after(tmp_path, lambda model: model.load_state_dict(state, strict=False))
    assert told is not None
    assert (told[0]["own_prefix"], told[0]["given_prefix"]) == ("body.", "backbone.")
    assert (told[0]["loaded"], told[0]["pairs"]) == (2, 8)


def test_what_is_loaded_during_the_run_has_its_step(tmp_path: Path) -> None:
    def script() -> None:
        model = net()
        train(model, 5)
        model.load_state_dict(prefixed("module."), strict=False)
        train(model)

    told = rows(tmp_path, script)
    assert told is not None
    assert told[0]["step"] == 5


def test_what_is_loaded_in_silence_is_heard(tmp_path: Path) -> None:
    def script() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(20):
            if step == 10:
                hub.sleep(8, optimizer)
            if step == 12:
                model.load_state_dict(prefixed("module."), strict=False)
            optimizer.zero_grad()
            model(torch.randn(4, 6)).sum().backward()
            optimizer.step()

    told = rows(tmp_path, script)
    assert told is not None
    assert told[0]["step"] == 12


def stripped(model: nn.Module) -> None:
    answer = model.load_state_dict(prefixed("module."), strict=False)
    assert answer.missing_keys
    model.load_state_dict({k.removeprefix("module."): v for k, v in prefixed("module.").items()})


def by_parts(model: nn.Module) -> None:
    state = prefixed("module.")
    model.load_state_dict(state, strict=False)
    for part in ("body", "head"):
        prefix = f"module.{part}."
        own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        model.get_submodule(part).load_state_dict(own, assign=True)


@torch.no_grad()
def by_hand(model: nn.Module) -> None:
    state = prefixed("module.")
    model.load_state_dict(state, strict=False)
    for name, tensor in model.state_dict().items():
        tensor.data.copy_(state["module." + name])


def once_more(model: nn.Module) -> None:
    state = trained()
    model.load_state_dict(state)
    model.load_state_dict({"module." + k: v for k, v in state.items()}, strict=False)


def new_head(model: nn.Module) -> None:
    state = {k: v for k, v in trained().items() if not k.startswith("head.")}
    state |= {"fc.weight": torch.zeros(1000, 8), "fc.bias": torch.zeros(1000)}
    model.load_state_dict(state, strict=False)


def adapter(model: nn.Module) -> None:
    model.load_state_dict({"head.weight": torch.ones(3, 8)}, strict=False)


@pytest.mark.parametrize(
    "load",
    [stripped, by_parts, by_hand, once_more, new_head, adapter],
    ids=lambda load: load.__name__,
)
def test_silent_where_all_arrives_or_has_no_partner(tmp_path: Path, load: Any) -> None:
    assert after(tmp_path, load) == []


def test_silent_on_a_model_that_the_run_does_not_use(tmp_path: Path) -> None:
    beside = net()

    def load(model: nn.Module) -> None:
        beside.load_state_dict(prefixed("module."), strict=False)

    assert after(tmp_path, load) == []


def test_a_model_that_is_only_evaluated_is_used(tmp_path: Path) -> None:
    def script() -> None:
        model, teacher = net(), net()
        teacher.load_state_dict(prefixed("module."), strict=False)
        with torch.no_grad():
            teacher(torch.randn(4, 6))
        train(model)

    assert len(rows(tmp_path, script) or ()) == 1


def test_nothing_is_written_where_nothing_is_loaded(tmp_path: Path) -> None:
    assert after(tmp_path, lambda model: None) is None


def test_the_state_of_an_optimizer_is_not_the_models(tmp_path: Path) -> None:
    def script() -> None:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(optimizer.state_dict())
        train(model)

    assert rows(tmp_path, script) is None


class Renaming(nn.Linear):
    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        own = {name.removeprefix("module."): value for name, value in state_dict.items()}
        return super().load_state_dict(own, strict, assign)


def test_an_override_is_heard_by_what_it_hands_on(tmp_path: Path) -> None:
    def script() -> None:
        model, told = Renaming(6, 3), nn.Linear(6, 3)
        state = {"module." + name: value for name, value in told.state_dict().items()}
        assert not model.load_state_dict(state).missing_keys
        assert torch.equal(model.weight, told.weight)
        train(model)

    assert rows(tmp_path, script) == []


def test_the_script_gets_what_it_gets_without_us(tmp_path: Path) -> None:
    plain, own = nn.Module.load_state_dict, net()
    alone = own.load_state_dict(prefixed("module."), strict=False)
    with pytest.raises(RuntimeError) as unwatched:
        own.load_state_dict(prefixed("module."))

    def script() -> None:
        assert inspect.signature(nn.Module.load_state_dict) == inspect.signature(plain)
        model = net()
        assert model.load_state_dict(prefixed("module."), strict=False) == alone
        assert model.load_state_dict(state_dict=trained()) == nn.Module().load_state_dict({})
        with pytest.raises(RuntimeError) as watched:
            model.load_state_dict(prefixed("module."))
        assert str(watched.value) == str(unwatched.value)
        with pytest.raises(TypeError, match="dict-like"):
            model.load_state_dict(3)  # type: ignore[arg-type]
        train(model)

    assert rows(tmp_path, script) == []
    assert nn.Module.load_state_dict is plain


def test_tensors_of_the_checkpoint_are_not_held(tmp_path: Path) -> None:
    held = []

    def load(model: nn.Module) -> None:
        state = prefixed("module.")
        held.extend(weakref.ref(tensor) for tensor in state.values())
        model.load_state_dict(state, strict=False)
        del state
        assert not any(ref() is not None for ref in held)

    assert len(after(tmp_path, load) or ()) == 1


def test_a_script_that_loads_so_at_every_step_fills_no_record(tmp_path: Path) -> None:
    def script() -> None:
        model = net()
        for _ in range(MOST_LOADS + 5):
            model.load_state_dict(prefixed("module."), strict=False)
            train(model, 1)

    assert len(rows(tmp_path, script) or ()) == MOST_LOADS


def test_the_prefix_that_most_names_share() -> None:
    own = {f"layers.{i}.{part}": (8, 8) for i in range(3) for part in ("q", "k")} | {"head": (3, 8)}
    given = {f"net.{name}": shape for name, shape in own.items()} | {"other.head": (3, 8)}
    assert common_prefixes(own, given) == ("", "net.")
    assert common_prefixes(own, {f"net.{name}": (9, 9) for name in own}) is None
    assert common_prefixes(own, {}) is None
