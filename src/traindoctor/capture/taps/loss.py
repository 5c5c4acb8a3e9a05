"""torch's loss functions and embedding look-ups: where targets and tokens can be seen."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import LossCalled, TokensEmbedded
from traindoctor.ground.nested import tensors_in, without_data

LOSSES = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "kl_div",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
)


def install(patches: Patches) -> None:
    for name in LOSSES:
        patches.replace(F, name, functools.partial(_loss, name))
    patches.replace(F, "embedding", _embedding)


def _loss(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original).parameters
    defaults = {name: parameter.default for name, parameter in signature.items()}

    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        # Under a TorchFunctionMode the original calls itself by name, which is this function again.
        if torch.compiler.is_compiling() or hub.call_depth:
            return original(*args, **kwargs)
        if not hub.hears(grad=torch.is_grad_enabled()):
            if not hub.asleep:
                hub.note("loss", tensors_in(kwargs.get("target", args[1:2])))
            return original(*args, **kwargs)
        hub.call_depth += 1
        try:
            output = original(*args, **kwargs)
        finally:
            hub.call_depth -= 1
        if isinstance(output, torch.Tensor):
            hub.emit(_called, kind, defaults, args, kwargs, output)
        return output

    return loss


def _called(
    kind: str, defaults: dict[str, Any], args: Any, kwargs: Any, output: torch.Tensor
) -> LossCalled | None:
    given = {**defaults, **dict(zip(defaults, args)), **kwargs}
    if not isinstance(given["target"], torch.Tensor) or without_data(output):
        return None
    return LossCalled(
        kind,
        given["input"],
        given["target"],
        output,
        str(given.get("reduction", "mean")),
        int(given.get("ignore_index", -100)),
        given.get("weight"),
        float(given.get("label_smoothing", 0.0)),
        output.requires_grad,
    )


def _embedding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def embedding(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.call_depth or hub.backward_depth:
            return original(input, weight, *args, **kwargs)
        grad = torch.is_grad_enabled()
        if not hub.hears(grad=grad):
            if not hub.asleep:
                hub.note("tokens", tensors_in(input))
            return original(input, weight, *args, **kwargs)
        hub.call_depth += 1
        try:
            output = original(input, weight, *args, **kwargs)
        finally:
            hub.call_depth -= 1
        hub.emit(_embedded, input, weight, grad)
        return output

    return embedding


def _embedded(index: Any, weight: Any, grad: bool) -> TokensEmbedded | None:
    return None if without_data((index, weight)) else TokensEmbedded(index, weight, grad)
