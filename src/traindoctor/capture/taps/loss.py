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


def traced() -> bool:
    """Under jit tracing, or under a dispatch mode: a compiler runs this with tensors that hold no numbers."""
    return torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def _loss(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or hub.call_depth or traced():
            # Under a TorchFunctionMode the original calls itself by name, which is this function again.
            return original(*args, **kwargs)
        hub.call_depth += 1
        try:
            output = original(*args, **kwargs)
        finally:
            hub.call_depth -= 1
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if isinstance(output, torch.Tensor) and isinstance(given["target"], torch.Tensor):
            hub.emit(
                LossCalled(
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
            )
        return output

    return loss


def _embedding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def embedding(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            torch.compiler.is_compiling()
            or hub.idle
            or hub.call_depth
            or hub.backward_depth
            or traced()
        ):
            return original(input, weight, *args, **kwargs)
        hub.call_depth += 1
        try:
            output = original(input, weight, *args, **kwargs)
        finally:
            hub.call_depth -= 1
        hub.emit(TokensEmbedded(input, weight, torch.is_grad_enabled()))
        return output

    return embedding
