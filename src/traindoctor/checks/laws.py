"""The laws of a correct training step, in a sentence each, by the cause that a broken one proves."""

from __future__ import annotations

_GRADIENT = "the optimizer receives the gradient of what backward was called on"
_REPORTED = "what is reported falls when what is optimised falls"
_REACHED = "a parameter that moves the loss gets a gradient from it"
_FRESH = "gradients of an earlier step are not in this one"
_RULE = "the weights move as the optimizer's rule says"
_IN_USE = "what trains is what the model uses now"
_UNSEEN = "a prediction does not see its own target"
_CONTEXT = "a prediction sees the context that it is allowed to see"
_ORDER = "order matters where the task has order"
_APART = "rows of a batch do not meet, and places meet only where the model mixes them"
_MEAN = "attention is a weighted mean over the places it attends to"
_INPUT = "the loss is given what it expects"
_WEIGHT = "every counted target carries the same weight, and each term the weight it was given"
_PADDING = "what the input calls padding is no target"
_ANEW = "what is drawn at random is drawn anew"
_DIFFERENT = "slots that should differ hold different things"
_REPLICAS = "replicas agree and shards add up"
_MAKER = "the first value that is not finite has a maker"

LAWS: dict[str, str] = {
    "backward-incorrect": _GRADIENT,
    "loss-gradient-mismatch": _REPORTED,
    "gradient-not-flowing": _REACHED,
    "init-too-small": _REACHED,
    "missing-zero-grad": _FRESH,
    "low-precision-updates-lost": _RULE,
    "fp16-underflow": _RULE,
    "adam-settings-bad": _RULE,
    "lr-schedule-wrong": _RULE,
    "clip-ineffective": _RULE,
    "clip-too-tight": _RULE,
    "optimizer-never-steps": _RULE,
    "optimizer-holds-stale-params": _IN_USE,
    "params-not-in-optimizer": _IN_USE,
    "optimizer-state-reset": _IN_USE,
    "wrong-train-eval-mode": _IN_USE,
    "causal-mask-leak": _UNSEEN,
    "targets-misaligned": _UNSEEN,
    "attention-blind": _CONTEXT,
    "position-missing": _ORDER,
    "norm-wrong": _APART,
    "attention-softmax-wrong-dim": _MEAN,
    "attention-scale-wrong": _MEAN,
    "double-softmax": _INPUT,
    "loss-scale-wrong": _WEIGHT,
    "all-targets-ignored": _WEIGHT,
    "padding-in-loss": _PADDING,
    "batch-not-changing": _ANEW,
    "ranks-see-same-data": _ANEW,
    "weights-tied-by-mistake": _DIFFERENT,
    "gradients-not-synced": _REPLICAS,
    "ranks-diverged": _REPLICAS,
    "nan-from-op": _MAKER,
    "unstable-softmax": _MAKER,
    "fp16-overflow": _MAKER,
}
