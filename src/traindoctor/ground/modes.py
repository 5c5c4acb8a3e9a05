"""The state of torch around an op: grad mode, autocast, random generators. Read, put in place, given back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from traindoctor.ground.torch_private import (
    num_dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
)

DEVICES = ("cpu", "cuda")


@contextmanager
def dispatch_modes_aside() -> Iterator[None]:
    """Inside, operations reach no dispatch mode."""
    kept = [pop_dispatch_mode() for _ in range(num_dispatch_modes())]
    try:
        yield
    finally:
        for mode in reversed(kept):
            push_dispatch_mode(mode)


Autocast = tuple[Any, ...]
"""((device, dtype) where it is on, whether casts of weights are cached)"""


def autocast_state() -> Autocast | None:
    """None when off, which is the common case."""
    on = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in DEVICES
        if torch.is_autocast_enabled(device)
    )
    return (on, torch.is_autocast_cache_enabled()) if on else None


def set_autocast_state(state: Autocast | None) -> None:
    on, cache = state if state is not None else ((), True)
    chosen = dict(on)
    for device in DEVICES:
        torch.set_autocast_enabled(device, device in chosen)
        if device in chosen:
            torch.set_autocast_dtype(device, chosen[device])
    torch.set_autocast_cache_enabled(cache)


def random_states(
    tensors: Sequence[Tensor], device: torch.device | str | int | None = None
) -> tuple[tuple[str, Tensor], ...]:
    """Of the CPU, of every device that the tensors lie on, and of the one where something is made of nothing."""
    states = [("cpu", torch.get_rng_state())]
    devices = {t.device for t in tensors if t.is_cuda}
    made = torch.device(device) if device is not None else torch.get_default_device()
    if made.type == "cuda":
        number = torch.cuda.current_device() if made.index is None else made.index
        devices.add(torch.device("cuda", number))
    for device in map(str, devices):
        states.append((device, torch.cuda.get_rng_state(device)))
    return tuple(states)


def set_random_state(device: str, state: Tensor) -> None:
    """Only inside `random_state_restored`: a GPU's generator is given another state to draw from."""
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        drawn = torch.Generator(device)
        drawn.set_state(state)
        _gpu_generators()[drawn.device.index or 0].graphsafe_set_state(drawn)


def seed_generators(seed: int) -> None:
    """`torch.manual_seed`, only inside `random_state_restored`."""
    torch.default_generator.manual_seed(seed)
    for generator in _gpu_generators():
        generator.graphsafe_set_state(torch.Generator(generator.device).manual_seed(seed))


def _gpu_generators() -> Sequence[torch.Generator]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


@contextmanager
def autocast_aside() -> Iterator[None]:
    """Off inside, and as it was afterwards; casts that were cached inside are dropped."""
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES]
    cache = torch.is_autocast_cache_enabled()
    torch.autocast_increment_nesting()
    for device in DEVICES:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


@contextmanager
def random_state_restored() -> Iterator[None]:
    """Python's, NumPy's (an operator of the script's may draw from them), the CPU's and that of every GPU in use.

    A GPU's generator draws from a copy meanwhile and gets its own state back as the object it was. Setting the state by
    its value would not do: the generator then tells cuDNN's recurrent layers to start their dropout anew.
    """
    generators = _gpu_generators()
    own = [generator.graphsafe_get_state() for generator in generators]
    cpu, python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy.random")
    numpy_state = numpy.get_state() if numpy is not None else None
    for generator in generators:
        generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(numpy_state)
        for generator, state in zip(generators, own):
            generator.graphsafe_set_state(state)


@contextmanager
def restored() -> Iterator[None]:
    """Inside, autocast is off at first; at the end random states, grad mode and autocast are as they were."""
    grad = torch.is_grad_enabled()
    with random_state_restored(), autocast_aside():
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
