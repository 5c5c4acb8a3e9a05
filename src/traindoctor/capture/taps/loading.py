"""Weights that a script loads into a module: what `load_state_dict` gives back says what did not arrive."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import WeightsLoaded
from traindoctor.ground.frames import here

# Reading any other mapping would run code of the script's.
PLAIN = (dict, OrderedDict)


def install(patches: Patches) -> None:
    patches.replace(torch.nn.Module, "load_state_dict", _load)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_state_dict(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle:
            return original(self, state_dict, *args, **kwargs)
        result = original(self, state_dict, *args, **kwargs)
        if type(state_dict) in PLAIN:
            hub.emit(_loaded, self, state_dict, result)
        return result

    return load_state_dict


def _loaded(module: torch.nn.Module, given: dict[str, Any], result: Any) -> WeightsLoaded:
    missing, unexpected = frozenset(result.missing_keys), frozenset(result.unexpected_keys)
    event = WeightsLoaded(module, given, missing, unexpected)
    if event.amiss:
        place = here()
        event.line = place.line or place.package_line
    return event
