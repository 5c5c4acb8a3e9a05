from __future__ import annotations

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.record import Record

# Modes are all or nothing in sound runs; a frozen part in evaluation mode leaves the rest training.
HALF = 0.5
# Passes without gradient at no more than this share of the steps are evaluations.
RARE = 0.2
# So many steps in a row are no evaluation in between.
IN_A_ROW = 5


@check(
    code="MOD011",
    slug="wrong-train-eval-mode",
    title="Dropout or normalisation runs in the wrong mode",
    needs=["mode.training"],
    min_steps=IN_A_ROW,
)
def wrong_train_eval_mode(record: Record) -> Outcome | None:
    """
    ## What it does
    Looks at the mode of the modules that care (dropout above zero, BatchNorm) at each training and each
    evaluation pass, and at dropout functions that are called in evaluation all the same.
    ## Why it matters
    Training in evaluation mode is training without dropout and with frozen statistics; evaluating in training
    mode makes the held-out loss noisy and too high.
    ## How to fix
    `model.train()` at the start of each training phase, also after an evaluation; `model.eval()` before it.
    ## When it stays silent
    Models without dropout and BatchNorm; parts that are frozen in evaluation mode on purpose; passes without
    gradient at most steps (sampling, pseudo-labels), and those of other models (teachers).
    """
    training = record["mode.training"]
    off = training.values < HALF
    if off[-IN_A_ROW:].all():
        first = len(off) - int((~off[::-1]).argmax()) if (~off).any() else 0
        return wrong_train_eval_mode.finding(
            evidence(
                "share of modules in training mode",
                float(training.values[first]),
                1.0,
                step=int(training.steps[first]),
            ),
            evidence("steps trained in evaluation mode", int(off.sum()), 0),
            since_step=int(training.steps[first]),
            summary="The model trains in evaluation mode"
            + (" since an evaluation" if first else ""),
        )
    evaluating, held = record.get("mode.eval_training"), record.get("loss.eval")
    if evaluating is not None and len(evaluating) and min(evaluating.values) > HALF:
        # Evaluations are rare; passes without gradient at most steps are part of the method.
        rare = len(evaluating) <= RARE * len(training)
        if rare or (held is not None and len(held)):
            return wrong_train_eval_mode.finding(
                evidence(
                    "share of modules in training mode while evaluating",
                    float(min(evaluating.values)),
                    0.0,
                    step=int(evaluating.steps[0]),
                ),
                evidence("evaluations", len(evaluating)),
                grade="statistic",
                summary="The model is evaluated in training mode",
            )
    dropping = record.get("mode.eval_dropout")
    if dropping is not None and len(dropping) and min(dropping.values) > 0:
        return wrong_train_eval_mode.finding(
            evidence(
                "dropout calls of an evaluation pass that drop something",
                float(dropping.last),
                0.0,
                step=int(dropping.steps[0]),
            ),
            evidence("share of modules in training mode meanwhile", 0.0),
            summary="Dropout is applied in evaluation as well: a function is not told the mode of its module",
            remedy="`F.dropout(x, p, training=self.training)`; for `scaled_dot_product_attention` "
            "`dropout_p=p if self.training else 0.0`.",
            grade="statistic",
        )
    return wrong_train_eval_mode.clear("modes are as they should be")
