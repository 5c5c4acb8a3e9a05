"""Why a finding that rests on a number alone stays *likely*: which decisive test was not made, by cause."""

from __future__ import annotations

_ANOTHER_START = "the same run from another start was not tried"
_NO_CURE = "no single change was found that cures it"

UNDECIDED: dict[str, str] = {
    "greedy-repetition": "how a text is decoded is a choice, and no law",
    "undertrained": "only more steps would show it",
    "wrong-train-eval-mode": "the same steps in the other mode were not tried",
    "position-missing": "the scores are pooled over the places, so order may be left out on purpose",
    "weights-tied-by-mistake": "weights can be shared on purpose",
    "residual-missing": "the same model with a way around each block was not trained",
    "dead-activations": _ANOTHER_START,
    "memory-leak": "what is kept alive may be kept on purpose",
    "init-too-large": _ANOTHER_START,
    "init-too-small": _ANOTHER_START,
    "attention-scale-wrong": "the same run with another scale was not tried",
    "norm-wrong": "the same run with another normalisation was not tried",
    "overfitting": "the run was not repeated with more data or a smaller model",
    "lr-too-low": "the gain of a higher rate is too small to be sure",
    "lr-too-high": "the gain of a lower rate is too small to be sure",
    "adam-settings-bad": "the usual settings could not be tried",
    "lr-schedule-wrong": "the same run at another rate could not be tried",
    "gradient-not-flowing": "the parameters get a gradient by another path",
    "gradients-exploding": _NO_CURE,
    "gradients-vanishing": _NO_CURE,
    "clip-too-tight": "a wider limit could not be tried",
    "fp16-overflow": "the first infinite value could not be followed to its maker",
    "low-precision-updates-lost": "the rule of this optimizer is not known",
    "data-not-shuffled": "the same run on shuffled batches was not tried",
    "targets-misaligned": "only part of the targets could be found in the input",
    "labels-unrelated": "that a task cannot be learned can be made likely, not proven",
    "gradients-not-synced": "the ranks did not start from equal weights",
    "input-pipeline-bound": "a faster pipeline was not tried",
    "sync-every-step": "the same steps without the reads were not tried",
}
