"""torch's own optimizers: a fresh object of the same class over other tensors takes the same step.

Only the exact classes below, with torch's own code in every method, count. The object is made by torch's constructor
and told plain settings; nothing of the script's object goes into it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from traindoctor.experiment.settings import NotPlain, plain
from traindoctor.ground.torch_code import is_torchs, is_untouched, layers

# Their steps treat each parameter by itself. LBFGS takes closures, SparseAdam sparse gradients.
ELEMENTWISE = frozenset(
    "SGD Adagrad RMSprop Adam AdamW NAdam RAdam Adamax Adadelta ASGD Rprop".split()
)
# These look at whole matrices: a part of a sharded parameter does not tell its step.
BY_MATRIX = frozenset(("Adafactor", "Muon"))
# Fast paths are not written for float64 copies on the CPU; every optimizer has the plain one.
PLAIN_PATH = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}


def is_torch_class(kind: type) -> bool:
    """The class that torch defines under this name, not one of the script's with the same name."""
    return (
        kind.__name__ in ELEMENTWISE | BY_MATRIX
        and _home(kind).startswith("torch.optim.")
        and vars(sys.modules[_home(kind)]).get(kind.__name__) is kind
    )


def _home(kind: type) -> str:
    """The module that defines it; torch shows some under another name."""
    names: dict[str, str] = getattr(kind.__init__, "__globals__", {})  # type: ignore[misc]
    return names.get("__name__", "")


def is_beyond(kind: type) -> bool:
    """A class of torch's whose step is not told by gradients alone."""
    return (
        issubclass(kind, Optimizer)
        and kind is not Optimizer
        and kind.__module__.startswith("torch.")
        and not is_torch_class(kind)
    )


def patched_name(kind: type[Optimizer]) -> str | None:
    """The first function of torch's class, or of its module, that somebody put code of their own into."""
    for name, value in vars(kind).items():
        if isinstance(value, types.FunctionType) and not all(map(is_torchs, layers(value))):
            return f"{kind.__name__}.{name}"
    *_, rule = layers(kind.step)
    defined = {f"{one.__name__}.step" for one in kind.__mro__}
    if not rule.__module__.startswith("torch.optim.") or rule.__qualname__ not in defined:
        return f"{kind.__name__}.step"
    for name, value in vars(sys.modules[_home(kind)]).items():
        if isinstance(value, types.FunctionType) and not (is_torchs(value) or _is_pythons(value)):
            return f"{_home(kind)}.{name}"
    for name in {"__init__", *rule.__code__.co_names} & vars(Optimizer).keys():
        if not is_untouched(vars(Optimizer)[name]):
            return f"Optimizer.{name}"
    if kind.__base__ is not Optimizer:
        return patched_name(kind.__base__)  # type: ignore[arg-type]
    return None


def _is_pythons(function: types.FunctionType) -> bool:
    """`typing.cast` and the like."""
    return function.__module__.partition(".")[0] in sys.stdlib_module_names


def fresh(
    kind: type[Optimizer],
    settings: Sequence[Mapping[str, Any]],
    tensors: Sequence[Sequence[Tensor]],
) -> Optimizer:
    """An object of torch's class with these settings and no state."""
    optimizer = kind([{"params": list(group)} for group in tensors])  # type: ignore[call-arg]
    for group, given in zip(optimizer.param_groups, settings):
        group.update({key: value for key, value in given.items() if key in group})
        group.update({key: value for key, value in PLAIN_PATH.items() if key in group})
    optimizer.state.clear()  # Adagrad fills it when it is made
    return optimizer


def known_state(state: Mapping[Any, Any]) -> dict[str, Any]:
    """What torch's rules keep for a parameter: tensors and numbers. A script may have put more beside them."""
    known: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            known[key] = value
        else:
            try:
                known[key] = plain(value)
            except NotPlain:
                continue
    return known
