"""What explains what: the table that turns a heap of findings into one root and its consequences.

`EXPLAINS[x]` lists what x brings about by itself. A finding that a better or equally sure finding explains is
a consequence, not a cause. The table is transitive and has no circle (a test walks it).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

# What any run shows that does not learn, whatever the reason.
_NOT_LEARNING = ("undertrained", "model-too-small")
# Steps that are too long, by whatever cause, end here.
_TOO_LONG = ("gradients-exploding", "dead-activations", "gradients-vanishing", "fp16-overflow")
# Steps that are too short, by whatever cause, look like a rate that is too low.
_TOO_SHORT = ("lr-too-low", *_NOT_LEARNING)
# A forward pass through which nothing passes.
_SILENT = ("gradients-vanishing", "attention-blind", "labels-unrelated", "lr-too-low")

EXPLAINS: Mapping[str, tuple[str, ...]] = {
    # data
    "targets-misaligned": (
        "labels-unrelated",
        "overfitting",
        "causal-mask-leak",
        "attention-blind",
        *_NOT_LEARNING,
    ),
    "batch-not-changing": ("overfitting", "data-not-shuffled", "ranks-see-same-data"),
    "labels-unrelated": ("overfitting", "lr-too-low", *_NOT_LEARNING),
    "padding-in-loss": ("greedy-repetition", "undertrained"),
    "data-not-shuffled": ("overfitting", "gradients-exploding", "lr-too-high", *_NOT_LEARNING),
    "ranks-see-same-data": ("overfitting",),
    # loss
    "loss-gradient-mismatch": ("lr-too-high", "gradient-not-flowing", *_TOO_SHORT),
    "loss-scale-wrong": ("lr-too-high", "clip-too-tight", *_TOO_LONG, *_TOO_SHORT),
    "double-softmax": ("gradients-vanishing", *_TOO_SHORT),
    "all-targets-ignored": (
        "nan-from-op",
        "gradient-not-flowing",
        "gradients-vanishing",
        "labels-unrelated",
        "loss-gradient-mismatch",
        *_TOO_SHORT,
    ),
    "unstable-softmax": ("nan-from-op", "fp16-overflow", "gradients-exploding", *_NOT_LEARNING),
    # gradient
    "missing-zero-grad": (
        "lr-too-high",
        "clip-too-tight",
        "loss-scale-wrong",
        "no-warmup",
        "loss-gradient-mismatch",
        *_TOO_LONG,
        *_NOT_LEARNING,
    ),
    "backward-incorrect": (
        "loss-gradient-mismatch",
        "loss-scale-wrong",
        "lr-too-high",
        "no-warmup",
        "clip-too-tight",
        "gradient-not-flowing",
        "nan-from-op",
        *_TOO_LONG,
        *_TOO_SHORT,
    ),
    "gradient-not-flowing": ("gradients-vanishing", *_TOO_SHORT),
    "gradients-exploding": ("clip-too-tight", "fp16-overflow", "nan-from-op", *_NOT_LEARNING),
    "gradients-vanishing": _TOO_SHORT,
    "clip-too-tight": _TOO_SHORT,
    "clip-ineffective": ("gradients-exploding", "fp16-overflow", *_NOT_LEARNING),
    # optimizer
    "lr-too-high": ("nan-from-op", *_TOO_LONG, *_NOT_LEARNING),
    "lr-too-low": _NOT_LEARNING,
    "lr-schedule-wrong": (
        "lr-too-low",
        "lr-too-high",
        "no-warmup",
        "low-precision-updates-lost",
        *_NOT_LEARNING,
    ),
    "no-warmup": ("lr-too-high", "nan-from-op", *_TOO_LONG, *_NOT_LEARNING),
    "params-not-in-optimizer": _TOO_SHORT,
    # The old tensors are stepped, cleared and perhaps clipped; the model's own are not.
    "optimizer-holds-stale-params": (
        "params-not-in-optimizer",
        "optimizer-never-steps",
        "missing-zero-grad",
        "clip-ineffective",
        *_TOO_SHORT,
    ),
    "optimizer-state-reset": ("lr-too-high", "adam-settings-bad", "no-warmup", *_NOT_LEARNING),
    "optimizer-never-steps": (
        "missing-zero-grad",
        "gradients-exploding",
        "loss-scale-wrong",
        "batch-not-changing",
        "clip-ineffective",
        *_TOO_SHORT,
    ),
    # AdamW's decay is multiplied by the rate: a lower rate wins wherever the decay is too high.
    "weight-decay-too-high": (
        "lr-too-high",
        "gradients-vanishing",
        "attention-blind",
        *_TOO_SHORT,
    ),
    "adam-settings-bad": (
        "lr-too-high",
        "no-warmup",
        "low-precision-updates-lost",
        *_TOO_LONG,
        *_TOO_SHORT,
    ),
    # model
    "causal-mask-leak": ("overfitting", "greedy-repetition", "undertrained"),
    "attention-blind": ("gradients-vanishing", *_NOT_LEARNING),
    "attention-scale-wrong": ("gradients-vanishing", "attention-blind", *_NOT_LEARNING),
    "attention-softmax-wrong-dim": (
        "attention-blind",
        "attention-scale-wrong",
        "causal-mask-leak",
        *_NOT_LEARNING,
    ),
    "position-missing": _NOT_LEARNING,
    "init-too-large": (
        "attention-scale-wrong",
        "attention-blind",
        "lr-too-high",
        "no-warmup",
        "clip-too-tight",
        "unstable-softmax",
        *_TOO_LONG,
        *_NOT_LEARNING,
    ),
    "init-too-small": (*_SILENT, "attention-scale-wrong", *_NOT_LEARNING),
    "residual-missing": (*_SILENT, "dead-activations", "norm-wrong", *_NOT_LEARNING),
    "norm-wrong": (
        "gradients-exploding",
        "gradients-vanishing",
        "attention-scale-wrong",
        "lr-too-high",
        "no-warmup",
        *_NOT_LEARNING,
    ),
    "dead-activations": (*_SILENT, "gradient-not-flowing", *_NOT_LEARNING),
    "wrong-train-eval-mode": ("overfitting", *_NOT_LEARNING),
    "weights-tied-by-mistake": ("model-too-small", "undertrained"),
    "model-too-small": ("undertrained",),
    # numerics
    "fp16-overflow": ("nan-from-op", *_NOT_LEARNING),
    "fp16-underflow": ("gradients-vanishing", "gradient-not-flowing", "nan-from-op", *_TOO_SHORT),
    # Half weights that are filled from float32 copies, and never move, look like weights that nobody steps.
    "low-precision-updates-lost": ("params-not-in-optimizer", *_TOO_SHORT),
    "nan-from-op": _NOT_LEARNING,
    # generalisation and generation
    "overfitting": (),
    "undertrained": ("greedy-repetition",),
    "greedy-repetition": (),
    # speed and memory
    "python-loop-per-example": ("input-pipeline-bound", "sync-every-step"),
    "input-pipeline-bound": (),
    "sync-every-step": (),
    "memory-leak": (),
    # distributed
    "gradients-not-synced": ("ranks-diverged", *_NOT_LEARNING),
    "ranks-diverged": _NOT_LEARNING,
}


@cache
def consequences(cause: str) -> frozenset[str]:
    """Everything `cause` explains, directly or through others."""
    found: set[str] = set()
    waiting = list(EXPLAINS.get(cause, ()))
    while waiting:
        slug = waiting.pop()
        if slug not in found:
            found.add(slug)
            waiting.extend(EXPLAINS.get(slug, ()))
    return frozenset(found)
