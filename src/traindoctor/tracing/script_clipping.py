"""Gradients before they are clipped: whoever asks is told of a clip call before it is made."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from traindoctor.capture.hub import Patches, hub

NAMES = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_")

Tell = Callable[[list[torch.Tensor]], Any]


def before_clipping(patches: Patches, tell: Tell) -> None:
    """Replaces torch's functions where they stand, and where the script has imported them by name."""
    home = torch.nn.utils.clip_grad
    namespaces = list(_namespaces())
    for name in NAMES:
        original = getattr(home, name, None)
        if original is None:
            continue
        patches.replace(home, name, functools.partial(_announced, tell))
        replacement = getattr(home, name)
        for names in namespaces:
            for held in [key for key, value in list(names.items()) if value is original]:
                names[held] = replacement


def _namespaces() -> Iterator[dict[str, Any]]:
    """Of the modules, and of the functions that run now: a spawned process runs its script in a namespace of its own."""
    for owner in list(sys.modules.values()):
        names = getattr(owner, "__dict__", None)
        if isinstance(names, dict):
            yield names
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_globals
        frame = frame.f_back


def _announced(tell: Tell, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle:
            return original(parameters, *args, **kwargs)
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        tell(given)
        if inspect.isgenerator(parameters):  # it can be read only once
            parameters = (parameter for parameter in given)
        return original(parameters, *args, **kwargs)

    return clip
