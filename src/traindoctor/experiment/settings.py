"""Settings of an optimizer's parameter groups as plain values: nothing of the script's is kept in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BETA_NAMES = (("beta1", "beta2"), ("beta_1", "beta_2"), ("b1", "b2"))
# Immutable, and without a method that a script could have written.
PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)


class NotPlain(Exception):
    """A value that can change, or that a script can have written methods for."""


def plain(value: Any) -> Any:
    """The value itself, made of Python's and torch's own immutable types; NotPlain where it is not.

    Numbers of NumPy and tensors of one element become Python's: a rate is a rate.
    """
    if type(value) in PLAIN:
        return value
    if type(value) is tuple or type(value) is list:
        return type(value)(plain(one) for one in value)
    if type(value) in (Tensor, torch.nn.Parameter) and value.numel() == 1:
        return value.detach().item()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and type(value).__module__ == "numpy":
        return value.item()
    raise NotPlain(f"a {type(value).__name__}")


def group_settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The plain settings of a parameter group, without its parameters."""
    settings = {}
    for key, value in group.items():
        if key not in ("params", "param_names"):
            try:
                settings[key] = plain(value)
            except NotPlain:
                continue
    return settings


def betas_of(group: Mapping[str, Any]) -> tuple[float, float] | None:
    """Adam's two decay rates, whatever an optimizer of the user's own calls them: betas, beta1 and beta2, b1 and b2."""
    given = group.get("betas")
    if given is None:
        for first, second in BETA_NAMES:
            if first in group and second in group:
                given = (group[first], group[second])
    try:
        one, two = (float(beta) for beta in given[:2])  # type: ignore[index]
    except (TypeError, ValueError):
        return None
    return one, two
