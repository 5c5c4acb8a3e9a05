"""The border: whatever state torch is in and whatever fails in our code, the script finds everything as it left it."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from traindoctor import events
from traindoctor.capture.hub import hub
from traindoctor.capture.watch import Watch
from traindoctor.ground.border import Border, border


class CountingMode(TorchFunctionMode):
    """A mode of the script's: it must not hear a single call of ours."""

    heard = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CountingMode.heard += 1
        return func(*args, **(kwargs or {}))


class CountingDispatch(TorchDispatchMode):
    heard = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CountingDispatch.heard += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic(*, warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def strict_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextlib.contextmanager
def profiled() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(lambda *event: None)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def nested_autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        with torch.autocast("cpu", torch.float16):
            yield


STATES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "usual": contextlib.nullcontext,
    "default device": lambda: torch.device("cpu"),
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "nested autocast": nested_autocast,
    "deterministic": lambda: deterministic(warn_only=False),
    "deterministic, warn only": lambda: deterministic(warn_only=True),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "function mode": CountingMode,
    "dispatch mode": CountingDispatch,
    "saved tensors on the CPU": torch.autograd.graph.save_on_cpu,
    "warnings are errors": strict_warnings,
    "a Python profiler": profiled,
}


def state() -> dict[str, Any]:
    """Everything of torch and Python that a script could find changed."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "warn always": torch.is_warn_always_enabled(),
        "filters": (id(warnings.filters), list(warnings.filters)),
        "profile": sys.getprofile(),
        "trace": sys.gettrace(),
        "threads": threading.active_count(),
        "random": (random.getstate(), torch.get_rng_state().tolist(), repr(np.random.get_state())),
    }  # fmt: skip


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.embed(x)))


def program() -> list[Any]:
    """Three steps in which every tap is called; everything a script could print of them."""
    torch.manual_seed(0)
    CountingMode.heard = CountingDispatch.heard = 0
    model = Model()
    wrapped = {f"module.{name}": tensor for name, tensor in Model().state_dict().items()}
    model.load_state_dict(wrapped, strict=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    rows = torch.randint(0, 11, (12, 6), dtype=torch.long)
    seen: list[Any] = []
    for batch in torch.utils.data.DataLoader(rows, batch_size=4):
        loss = F.cross_entropy(model(batch).flatten(0, 1).float(), batch.roll(-1, 1).flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        seen.append(loss.item())
    with torch.no_grad():
        seen.append(model.eval()(rows).sum().item())
    weights = [p.detach().double().sum().item() for p in model.parameters()]
    return [*seen, *weights, CountingMode.heard, CountingDispatch.heard]


def emitted() -> list[type]:
    """Every event that a tap can make."""
    return [kind for kind in typing.get_args(events.Event) if kind is not events.RunEnded]


@pytest.mark.parametrize("name", STATES)
def test_an_attached_run_is_the_same_in_every_state(name: str, tmp_path: Path) -> None:
    with STATES[name]():
        plain = program()
        before = state()
        watch = Watch(tmp_path)
        watch.attach()
        try:
            attached = program()
        finally:
            watch.detach()
        after = state()
        del before["threads"], after["threads"]  # the record has a writer of its own
    watch.close()
    assert watch.faults == []
    assert attached == plain
    assert after == before


@pytest.mark.parametrize("kind", emitted(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", STATES)
def test_a_fault_at_any_entry_reaches_nobody(
    name: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with STATES[name]():
        plain = program()
        before = state()
        watch = Watch(tmp_path, replay=False, probes=[])
        reached = []

        def handle(event: Any) -> None:
            if type(event) is kind:
                reached.append(event)
                torch.zeros(2).sum()  # in whatever state we are in
                raise RuntimeError("a fault of ours")

        monkeypatch.setattr(watch, "_handle", handle)
        watch.attach()
        try:
            attached = program()
        finally:
            watch.detach()
        after = state()
    assert len(reached) == 1, "the first fault switches us off"
    assert len(watch.faults) == 1
    assert "a fault of ours" in watch.faults[0]
    assert attached == plain
    assert after == before
    assert hub.sink is None


@pytest.mark.parametrize("name", STATES)
def test_inside_torch_is_in_a_state_of_our_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # whatever other tests left running
    made = []

    def handler() -> None:
        made.append((torch.ones(1).device.type, torch.ones(1).dtype, torch.is_grad_enabled()))
        made.append(torch.is_autocast_enabled("cpu") or torch.is_anomaly_enabled())
        warnings.warn("one of ours", stacklevel=1)

    with STATES[name](), torch.device("meta"):
        Border().enter(handler)
    assert made == [("cpu", torch.float32, False), False]


def test_beside_other_threads_what_is_the_whole_process_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    with deterministic(warn_only=True), default_dtype(torch.float64):
        inside = Border().enter(
            lambda: (torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype())
        )
    assert inside == (True, torch.float64)


def test_inference_mode_is_left_and_entered_again() -> None:
    with torch.inference_mode():
        grown = Border().enter(lambda: torch.ones(1).is_inference())
        assert torch.is_inference_mode_enabled()
    assert grown is False


@pytest.mark.parametrize("where", ["vmap", "trace", "fake"])
def test_we_stay_outside_where_tensors_hold_no_numbers(where: str) -> None:
    entered = []

    def look(x: Tensor) -> Tensor:
        Border().enter(entered.append, 1)
        return x * 2

    if where == "vmap":
        torch.vmap(look)(torch.ones(3))
    elif where == "trace":
        torch.jit.trace(look, torch.ones(3), check_trace=False)
    else:
        with torch._subclasses.FakeTensorMode():
            look(torch.ones(3))
    assert entered == []


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11's own
def test_the_scripts_own_profile_has_none_of_our_operations() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        Border().enter(lambda: torch.ones(3).cumsum(0))
    assert not any("cumsum" in event.name for event in profile.events())


def test_an_entry_inside_an_entry_is_not_made() -> None:
    ours = Border()
    assert ours.enter(lambda: ours.enter(lambda: 1)) is None
    assert ours.on


def test_another_thread_meanwhile_is_not_heard() -> None:
    ours, heard = Border(), []

    def handler() -> None:
        other = threading.Thread(target=ours.enter, args=(heard.append, 1))
        other.start()
        other.join()

    ours.enter(handler)
    ours.enter(heard.append, 2)
    assert heard == [2]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_belongs_to_the_script_passes(kind: type[BaseException]) -> None:
    ours = Border()

    def handler() -> None:
        raise kind

    before = state()
    with pytest.raises(kind):
        ours.enter(handler)
    assert state() == before
    assert ours.on


def test_torch_warns_the_script_as_often_as_without_us() -> None:
    def cast() -> Tensor:
        return torch.ones(2, dtype=torch.complex64).real.new_ones(2).to(torch.complex64).float()

    Border().enter(cast)  # torch warns of this once per process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ones(2, dtype=torch.complex64).float()
        first = len(caught)
    assert first == 1


def test_what_the_script_waited_is_counted() -> None:
    ours = Border()
    for _ in range(3):
        ours.enter(lambda: threading.Event().wait(0.01))
    assert ours.seconds >= 0.03
    assert border is not ours


def test_a_second_thread_that_trains_ends_the_watching_and_waits_for_who_is_inside() -> None:
    border, told, order = Border(), [], []
    border.when_broken = told.append
    inside, leave = threading.Event(), threading.Event()

    def look() -> None:
        inside.set()
        leave.wait(60)
        order.append("the first has looked")

    def train_first() -> None:
        border.backward_begins()
        border.enter(look)

    def train_second() -> None:
        border.backward_begins()
        order.append("the second writes gradients")

    first, second = threading.Thread(target=train_first), threading.Thread(target=train_second)
    first.start()
    assert inside.wait(60)
    second.start()
    second.join(0.2)
    assert not order
    leave.set()
    first.join()
    second.join()
    assert order == ["the first has looked", "the second writes gradients"]
    assert not border.on
    assert border.enter(lambda: "looked") is None
    [error] = told
    assert "several threads" in str(error)


def test_training_that_moves_to_another_thread_is_still_watched() -> None:
    border = Border()
    for _ in range(2):
        thread = threading.Thread(target=border.backward_begins)
        thread.start()
        thread.join()
    assert border.enter(lambda: "looked") == "looked"
