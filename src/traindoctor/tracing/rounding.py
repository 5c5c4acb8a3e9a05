"""What rounding alone does to a step: every operation's inputs and results moved by one unit in the last place.

Monte Carlo arithmetic: two right implementations of one formula differ in the order of sums and in where values are
rounded. A step whose every operation is perturbed by that much shows how far each tensor may move for it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from traindoctor.compare.trace import Key
from traindoctor.ground.torch_private import TorchDispatchMode, tree_map_only
from traindoctor.tracing.steps import Sink

# Operations that only hand values on, or set them: what they give is as exact as what they were given.
HANDED_ON = {"copy_", "_to_copy", "clone", "detach", "lift_fresh", "zero_", "fill_", "set_"}
# Parts of the names of those whose result is random.
DRAWN = "rand bernoulli uniform normal_ multinomial exponential poisson rrelu dropout".split()
PLAIN = (Tensor, torch.nn.Parameter)
# Elements of a tensor that are moved at a time: what that takes beside the tensor itself stays small.
AT_ONCE = 1 << 22


class Rounding(TorchDispatchMode):
    """Perturbs whatever runs inside: by the last place of each tensor's own dtype, by `coarse` where that is more.

    `products` is the same for what goes into matrix products alone (TF32).
    """

    def __init__(self, seed: int, *, coarse: float = 0.0, products: float = 0.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._coarse, self._products = coarse, products
        self._generators: dict[torch.device, torch.Generator] = {}
        self.active = True
        """Switched off, everything is computed as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.rpartition("::")[2]
        if (
            not self.active
            or name in HANDED_ON
            or any(
                return_.alias_info and not return_.alias_info.is_write
                for return_ in func._schema.returns
            )
            or draws(name)
            or not any(isinstance(value, Tensor) for value in _flat((args, kwargs)))
        ):
            return func(*args, **kwargs)
        unit = max(self._coarse, self._products if is_product(name) else 0.0)
        written = _written(func, args, kwargs)
        if written:
            given = func(*args, **kwargs)
            with torch.no_grad():
                for tensor in written:
                    self.moved(tensor, unit, made=True)
            return given
        args, kwargs = tree_map_only(Tensor, lambda t: self.moved(t, unit), (args, kwargs))
        given = func(*args, **kwargs)
        # Of large results there is no room for a second one: an operation without aliases has made its own.
        return tree_map_only(Tensor, lambda t: self.moved(t, self._coarse, made=True), given)

    @torch.no_grad()
    def moved(self, tensor: Tensor, unit: float = 0.0, *, made: bool = False) -> Tensor:
        """The tensor with each number up or down by about one unit in its last place; itself, where nobody else has it.

        Whole numbers stay: they are counts, positions and indices, which no right program rounds.
        """
        if not _movable(tensor):
            return tensor
        size = max(unit, torch.finfo(tensor.dtype).eps)
        wide = torch.promote_types(tensor.dtype, torch.float32)
        moved = tensor if made else tensor.clone()
        for part in moved.view(-1).split(AT_ONCE) if moved.is_contiguous() else (moved,):
            factor = torch.empty_like(part, dtype=wide)
            factor.uniform_(1 - size, 1 + size, generator=self._generator(tensor.device))
            part.copy_(torch.where(part == part.round(), part, factor.mul_(part).to(part.dtype)))
        return moved

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def is_product(name: str) -> bool:
    """Operations that tensor cores make: with TF32 their inputs are rounded to 10 bits."""
    products = {"mm", "bmm", "addmm", "baddbmm", "linear", "matmul"}
    inside = ("convolution", "attention", "cudnn_rnn")
    return name in products or any(part in name for part in inside)


def draws(name: str) -> bool:
    """Operations whose result is random: a mask that is moved would be another mask.

    torch's own tag also stands on attention and recurrent layers, which only may drop something.
    """
    return any(part in name for part in DRAWN)


def _movable(tensor: Tensor) -> bool:
    return (
        type(tensor) in PLAIN
        and tensor.is_floating_point()
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and tensor.dtype.itemsize > 1
    )


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [tensor for tensor in _flat(value) if isinstance(tensor, Tensor)]
    return found


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for inner in value:
            yield from _flat(inner)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


@contextmanager
def rounding(
    seed: int | None, *, coarse: float = 0.0, products: float = 0.0
) -> Iterator[Rounding | None]:
    """Inside, everything is perturbed; without a seed nothing is."""
    if seed is None:
        yield None
        return
    with Rounding(seed, coarse=coarse, products=products) as mode:
        yield mode


class From:
    """A sink that switches the perturbation on when it has taken one tensor: what comes before it is known to be equal."""

    def __init__(self, sink: Sink, mode: Rounding, start: Key) -> None:
        self._sink, self._mode, self._start = sink, mode, start
        mode.active = False

    def take(
        self, name: str, kind: str, step: int, tensor: Tensor, about: Mapping[str, Any]
    ) -> None:
        self._sink.take(name, kind, step, tensor, about)
        if (kind, step, name) == self._start:
            self._mode.active = True
