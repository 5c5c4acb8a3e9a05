"""A few training steps with every tensor handed to a sink, in the order in which it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from traindoctor.ground.modes import dispatch_modes_aside
from traindoctor.ground.names import clean, is_compiled
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.torch_private import current_backward


class Sink(Protocol):
    """Takes each tensor when it is made; it may not keep it."""

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None: ...


@dataclass
class Side:
    """What trains: made by a function of the user's, the same for every run of it."""

    model: nn.Module
    batches: Sequence[Any]
    loss_fn: Callable[[Any, Any], Tensor]
    optimizer: torch.optim.Optimizer
    names: dict[str, Tensor] = field(default_factory=dict)
    """Its parameters by name, tied ones once."""

    def __post_init__(self) -> None:
        self.names = {clean(name): p for name, p in self.model.named_parameters()}


def directly(handler: Callable[..., Any], *args: Any) -> Any:
    """Calls it."""
    return handler(*args)


def modules_of(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model by their plain names. Inside compiled code no hook is called: it is seen from outside."""
    wrapped = "_orig_mod" in model._modules
    if wrapped or not is_compiled(model):
        yield clean(name), model
        for part, inner in () if wrapped else model.named_children():
            yield from modules_of(inner, f"{name}.{part}" if name else part)


class Tracer:
    """Hooks on every module of a model; gone after `with`.

    `enter` is what calls of ours pass through (the border, in a script), `hears` says whether a forward pass counts.
    """

    def __init__(
        self,
        model: nn.Module,
        sink: Sink,
        *,
        enter: Callable[..., Any] = directly,
        hears: Callable[[], bool] = lambda: True,
    ) -> None:
        self._model, self._sink = model, sink
        self._enter, self._hears = enter, hears
        self._step = 0
        self._calls: dict[str, int] = {}
        self._known: dict[int, OurRef] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Tracer:
        seen: set[int] = set()
        for name, module in modules_of(self._model):
            if id(module) in seen:
                continue
            seen.add(id(module))
            self._handles.append(module.register_forward_pre_hook(self._before(name)))
            self._handles.append(module.register_forward_hook(self._after(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def begin(self, step: int) -> None:
        self._step = step
        self._calls.clear()
        self._known.clear()

    def saw(self, tensor: Tensor) -> None:
        """It needs no name of its own when a module is given it."""
        self._known[id(tensor)] = OurRef(tensor)

    def _before(self, name: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, given: Any) -> None:
            if not self._elsewhere():
                self._enter(self._given, name, module, given)

        return hook

    def _given(self, name: str, module: nn.Module, given: Any) -> None:
        if not name or any(module.children()):
            return
        tensor = next(_floats(given), None)
        if tensor is not None and not self._has(tensor):
            self._take(f"{name}.input", tensor, {"op": type(module).__name__})

    def _after(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, made: Any) -> None:
            if not self._elsewhere():
                self._enter(self._made, name, module, made)

        return hook

    def _made(self, name: str, module: nn.Module, made: Any) -> None:
        for key, tensor in _named_floats(made):
            if not self._has(tensor):
                about: dict[str, Any] = {"op": type(module).__name__}
                eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
                if isinstance(eps, float):
                    about["eps"] = eps
                self._take(f"{name or 'output'}{key}", tensor, about)

    def _elsewhere(self) -> bool:
        """Inside a compiler's trace, where a checkpoint computes again what was seen, or where nobody listens."""
        return torch.compiler.is_compiling() or current_backward() != -1 or not self._hears()

    def _has(self, tensor: Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor

    def _take(self, name: str, tensor: Tensor, about: Mapping[str, Any]) -> None:
        call = self._calls[name] = self._calls.get(name, 0) + 1
        name = name if call == 1 else f"{name}#{call}"
        self._sink.take(name, "activation", self._step, tensor.detach(), about)
        self.saw(tensor)
        if tensor.requires_grad:
            step = self._step

            def arrived(gradient: Tensor | None) -> None:
                if (
                    gradient is not None
                ):  # cuDNN's LSTM gives none for a last state that nobody uses
                    self._enter(self._sink.take, name, "gradient", step, gradient.detach(), about)

            tensor.register_hook(arrived)


def _floats(value: Any) -> Iterator[Tensor]:
    return (tensor for _, tensor in _named_floats(value))


def _named_floats(value: Any, key: str = "") -> Iterator[tuple[str, Tensor]]:
    """The floating-point tensors in what a module was given or gave; the first one has no suffix."""
    found: list[tuple[str, Tensor]] = []

    def look(value: Any, key: str) -> None:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                found.append((key, value))
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                look(inner, f"{key}.{name}")
        elif isinstance(value, (tuple, list)):
            for number, inner in enumerate(value):
                look(inner, f"{key}.{number}")

    look(value, key)
    yield from [("", found[0][1])] if len(found) == 1 else found


class Aside:
    """Hands tensors on with no mode of torch in force: what a sink computes is not part of the step."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        with dispatch_modes_aside():
            self._sink.take(name, kind, step, tensor, about)


def run_steps(side: Side, sink: Sink, steps: int) -> None:
    """Forward, loss, backward and update, `steps` times; the same batch again where there are fewer."""
    side.model.train()
    sink = Aside(sink)
    for name, parameter in side.names.items():
        sink.take(name, "weight", 0, parameter.detach(), {})
    with Tracer(side.model, sink) as tracer:
        for step in range(steps):
            torch.manual_seed(step)
            batch = side.batches[step % len(side.batches)]
            tracer.begin(step)
            for name, tensor in batch_tensors(batch):
                sink.take(name, "input", step, tensor.detach(), {})
                tracer.saw(tensor)
            side.optimizer.zero_grad()
            loss = side.loss_fn(side.model, batch)
            sink.take("loss", "loss", step, loss.detach(), {})
            loss.backward()
            for name, parameter in reversed(side.names.items()):
                if parameter.grad is not None:
                    sink.take(name, "gradient", step, parameter.grad.detach(), {})
            with Movement(side.names, sink, step):
                side.optimizer.step()
            del loss


class Movement:
    """What happens to the weights inside is handed on as updates."""

    def __init__(self, names: Mapping[str, Tensor], sink: Sink, step: int) -> None:
        self._names, self._sink, self._step = names, sink, step

    def __enter__(self) -> None:
        with dispatch_modes_aside():
            self._before = {name: p.detach().clone() for name, p in self._names.items()}

    def __exit__(self, kind: object, *_: object) -> None:
        for name, parameter in self._names.items() if kind is None else ():
            # In float32 at least: the difference of two bfloat16 numbers need not be one.
            wide = torch.promote_types(parameter.dtype, torch.float32)
            with dispatch_modes_aside():
                moved = parameter.detach().to(wide) - self._before.pop(name).to(wide)
            self._sink.take(name, "update", self._step, moved, {})


def batch_tensors(batch: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch with a name each."""
    if isinstance(batch, Tensor):
        yield "batch", batch
    elif isinstance(batch, Mapping):
        for name, inner in batch.items():
            yield from (
                (f"{name}{rest.removeprefix('batch')}", t) for rest, t in batch_tensors(inner)
            )
    elif isinstance(batch, (tuple, list)):
        for number, inner in enumerate(batch):
            yield from (
                (f"batch.{number}{rest.removeprefix('batch')}", t)
                for rest, t in batch_tensors(inner)
            )
