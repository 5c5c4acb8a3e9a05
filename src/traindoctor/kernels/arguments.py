"""Checks of arguments and the choice of an implementation, shared by both loss operations."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

IMPLEMENTATIONS = ("auto", "reference", "torch", "triton")
REDUCTIONS = ("mean", "sum", "none")
TRITON_PRESENT = importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a loss, checked."""

    ignore_index: int
    reduction: str
    label_smoothing: float
    z_loss: float
    check_targets: bool
    """look for targets out of range on a GPU too, at the price of waiting for it"""
    impl: str

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"reduction is one of {REDUCTIONS}, not {self.reduction!r}")
        if not 0 <= self.label_smoothing <= 1:
            raise RuntimeError(f"label_smoothing is between 0 and 1, not {self.label_smoothing}")


@lru_cache(maxsize=256)
def _cached_settings(
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    check_targets: bool,
    impl: str,
) -> Settings:
    return Settings(
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=float(label_smoothing),
        z_loss=float(z_loss),
        check_targets=check_targets,
        impl=impl,
    )


def checked_settings(
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    check_targets: bool,
    impl: str,
) -> Settings:
    """Settings, made once for each combination: a training loop asks for the same ones each step."""
    # torch.compile looks through the cache, and says so with a warning.
    make = _cached_settings.__wrapped__ if torch.compiler.is_compiling() else _cached_settings
    return make(ignore_index, reduction, label_smoothing, z_loss, check_targets, impl)


def check_index_targets(targets: Tensor, rows: torch.Size, what: str) -> None:
    """Targets are class indices, one for each row."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise RuntimeError(
            f"targets are class indices of an integer type, not {targets.dtype}; for class "
            "probabilities use torch.nn.functional.cross_entropy"
        )
    if targets.shape != rows:
        raise ValueError(
            f"Expected targets of shape {tuple(rows)} (one for each row of {what}), "
            f"got {tuple(targets.shape)}"
        )


def check_range(targets: Tensor, num_classes: int, ignore_index: int) -> None:
    """Raise IndexError for the first target that is neither a class nor ignored. Waits for a GPU."""
    wrong = ((targets < 0) | (targets >= num_classes)) & (targets != ignore_index)
    if bool(wrong.any()):
        target = int(targets[wrong][0])
        raise IndexError(
            f"Target {target} is out of bounds: classes are 0 to {num_classes - 1} "
            f"and ignore_index is {ignore_index}."
        )


def plain_targets(targets: Tensor, num_classes: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(targets fit for gather, mask of rows that count); a class out of range counts, as class 0.

    Its row is then poisoned with NaN by `out_of_range`: on a GPU a mistake must show without a host copy.
    """
    valid = targets != ignore_index
    inside = (targets >= 0) & (targets < num_classes)
    return torch.where(valid & inside, targets, 0).long(), valid


def out_of_range(targets: Tensor, num_classes: int, ignore_index: int) -> Tensor:
    """Mask of the rows whose target is no class and not ignored."""
    return ((targets < 0) | (targets >= num_classes)) & (targets != ignore_index)


def triton_usable(tensor: Tensor) -> bool:
    """Whether a Triton kernel can run on this tensor: a CUDA device, or the interpreter."""
    if not TRITON_PRESENT:
        return False
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def choose(impl: str, tensor: Tensor, kernel_dtypes: tuple[torch.dtype, ...]) -> str:
    """Turn 'auto' into a name; refuse 'triton' where it cannot run."""
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl is one of {IMPLEMENTATIONS}, not {impl!r}")
    if impl == "auto":
        fits = tensor.is_cuda and TRITON_PRESENT and tensor.dtype in kernel_dtypes
        return "triton" if fits else "torch"
    if impl == "triton" and tensor.dtype not in kernel_dtypes:
        raise RuntimeError(
            f"impl='triton' takes float32, bfloat16 and float16, not {tensor.dtype}; use impl='auto'"
        )
    if impl == "triton" and not triton_usable(tensor):
        raise RuntimeError(
            f"impl='triton' needs a CUDA tensor and the triton package, got a tensor on "
            f"{tensor.device}; use impl='auto', or TRITON_INTERPRET=1 to test without a GPU"
        )
    return impl


def reduce_losses(losses: Tensor, num_valid: Tensor, reduction: str) -> Tensor:
    """Sum or mean of row losses (float64, 0 where ignored); 0/0 = NaN when nothing counts, as torch."""
    if reduction == "none":
        return losses
    total = losses.sum(dtype=torch.float64)
    return total if reduction == "sum" else total / num_valid
