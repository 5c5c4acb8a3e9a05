import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import (
    ENOUGH_LOOKS,
    Finding,
    Outcome,
    check,
    done_exam,
    evidence,
    watched,
    worth_asking,
)
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.optimizer.base import last_stage
from traindoctor.record import Record

# Modes are all or nothing in sound runs; a frozen part in evaluation mode leaves the rest training.
HALF = 0.5
# Passes without gradient at no more than this share of the steps are evaluations.
RARE = 0.2
# On long runs of short steps every 16th step is looked at; what shows up more seldom is no part of every step.
SELDOM = 16
# So many steps in a row are no evaluation in between.
IN_A_ROW = 5
# With the usual momentum (0.1), seven eighths of the running statistics come from the last so many batches.
BATCHES = 20


@check(
    code="MOD011",
    slug="wrong-train-eval-mode",
    title="Dropout or normalisation runs in the wrong mode",
    law=laws.IN_USE,
    undecided="the steps were not repeated in the other mode",
    explains=("overfitting", *NOT_LEARNING),
)
def wrong_train_eval_mode(record: Record) -> Outcome:
    """
    ## What it does
    Looks at the mode of the modules that care (dropout above zero, BatchNorm) at each training and each
    evaluation pass, and at dropout functions that are called in evaluation all the same. Where the loss compares
    with what another model says, it follows those targets back to the dropout that they went through. Of a model that
    is evaluated beside the trained one, as a moving average of its weights, it compares the running statistics of
    BatchNorm from evaluation to evaluation: they change with the weights, or they belong to others.
    ## Why it matters
    Training in evaluation mode is training without dropout and with frozen statistics; evaluating in training
    mode makes the held-out loss noisy and too high; a teacher in training mode teaches something else each time.
    An average of the weights alone normalises with the mean and variance of another network, or of none.
    ## How to fix
    `model.train()` at the start of each training phase, also after an evaluation; `model.eval()` before it. Copy the
    buffers of a model with its weights.
    ## When it stays silent
    Models without dropout and BatchNorm; dropout that is off from the first step (of the run, or of a last stage with an
    optimizer of its own) beside a frozen model that is asked at each step, as preference training does it; a last stage
    that begins in evaluation mode without an evaluation before it; parts that are frozen in evaluation mode on purpose;
    passes without gradient at most steps (sampling, pseudo-labels), teachers that follow the student (moving averages) or are
    asked several times per batch, and frozen features that a trained part works on. Of running statistics: those that
    are frozen in training too, networks whose weights do not change either, evaluations in the first steps.
    """
    taught = by_a_dropping_teacher(record)
    if isinstance(taught, Finding):
        return taught
    of_others = with_other_statistics(record)
    if of_others is not None:
        return of_others
    training = record.get("mode.training")
    if training is None or len(training) < IN_A_ROW:
        if taught is None and watched(record) and record.num_steps >= ENOUGH_LOOKS:
            return wrong_train_eval_mode.not_applicable("no module behaves differently in training")
        return taught or wrong_train_eval_mode.not_judged(
            f"the mode of the modules was not seen on {IN_A_ROW} steps", why="too-few-steps"
        )
    off = training.values < HALF
    stage = last_stage(record)
    of_stage = off[training.steps >= stage]
    if len(of_stage) and of_stage.all() and meant(record, stage, len(of_stage)):
        return wrong_train_eval_mode.clear(
            "dropout is off from the first step on, as in the frozen reference model"
        )
    if off[-IN_A_ROW:].all():
        first = len(off) - int((~off[::-1]).argmax()) if (~off).any() else 0
        before = int(training.steps[first - 1]) if first else -1
        after = int(training.steps[first])
        if 0 < stage and before < stage <= after and not evaluated(record, before, after):
            return wrong_train_eval_mode.clear(
                "the last stage starts in eval mode with no evaluation before it, which is "
                "taken as intended"
            )
        whole = record.get("mode.whole")
        if first and whole is not None and whole.last and not evaluated(record, before, after):
            return wrong_train_eval_mode.clear(
                "parts of the model are frozen in eval mode with no evaluation before, which is taken as intended"
            )
        return wrong_train_eval_mode.finding(
            evidence(
                "share of modules in train mode",
                float(training.values[first]),
                1.0,
                step=int(training.steps[first]),
            ),
            evidence("steps trained in eval mode", int(off.sum()), 0),
            since_step=int(training.steps[first]),
            summary="The model is trained in eval mode" + (" since an evaluation" if first else ""),
            grade="exact",
        )
    of_evaluation = while_evaluating(record, len(training))
    return (
        of_evaluation or taught or wrong_train_eval_mode.clear("all modules are in the right mode")
    )


def while_evaluating(record: Record, steps: int) -> Finding | None:
    """Passes without gradient in training mode, or with dropout in any mode."""
    evaluating, held = record.get("mode.eval_training"), record.get("loss.eval")
    if evaluating is not None and len(evaluating) and min(evaluating.values) > HALF:
        # Evaluations are rare; passes without gradient at most steps are part of the method.
        rare = len(evaluating) <= RARE * steps
        if rare or (held is not None and len(held)):
            return wrong_train_eval_mode.finding(
                evidence(
                    "share of modules in train mode while evaluating",
                    float(min(evaluating.values)),
                    0.0,
                    step=int(evaluating.steps[0]),
                ),
                evidence("evaluations", len(evaluating)),
                grade="statistic",
                summary="The model is evaluated in train mode",
            )
    dropping = record.get("mode.eval_dropout")
    if dropping is not None and len(dropping) and min(dropping.values) > 0:
        return wrong_train_eval_mode.finding(
            evidence(
                "active dropout calls in an evaluation pass",
                float(dropping.last),
                0.0,
                step=int(dropping.steps[0]),
            ),
            evidence("share of modules in train mode meanwhile", 0.0),
            summary=(
                "Dropout stays active in evaluation: the functional form does not know the "
                "module's mode"
            ),
            remedy=(
                "Use `F.dropout(x, p, training=self.training)`, and `dropout_p=p if "
                "self.training else 0.0` for `scaled_dot_product_attention`."
            ),
            grade="statistic",
        )
    return None


def with_other_statistics(record: Record) -> Finding | None:
    """A copy of the model that got the weights and not the buffers, when it was last evaluated."""
    for model in record.fact("mode.running_statistics", ()):
        name, step = model["model"], model["step"]
        if model["initial"] and model["trained_steps"] >= BATCHES:
            seen = evidence(
                "evaluated layers whose running mean is 0 and running variance 1 throughout",
                model["initial"],
                0,
                step=step,
            )
            summary = (
                f"The evaluated {name} normalises with running statistics of no batch (mean 0, "
                "variance 1), while its weights come from training"
            )
        elif model["kept"] and step - model["kept_since"] >= BATCHES:
            seen = evidence(
                "evaluated layers with other weights and bit for bit the same running statistics",
                model["kept"],
                0,
                step=step,
            )
            summary = (
                f"The evaluated {name} normalises with the running statistics that it had at step "
                f"{model['kept_since']}, while its weights have changed since"
            )
        else:
            continue
        return wrong_train_eval_mode.finding(
            seen,
            evidence("evaluated layers with running statistics", model["layers"]),
            where=model["where"],
            since_step=model["since"],
            summary=summary,
            remedy=(
                "Copy the buffers wherever the parameters are averaged (`average_buffer.copy_(buffer)` "
                "for each pair; PyTorch's `AveragedModel` does so), or call `update_bn(loader, average)` of "
                "PyTorch's `swa_utils` before each evaluation."
            ),
            grade="exact",
        )
    return None


def evaluated(record: Record, since: int, until: int) -> bool:
    """Whether a pass without gradient was made in evaluation mode in these steps: the mode may be left over from it."""
    passes = (record.get("mode.eval_training"), record.get("mode.beside_training"))
    return any(
        bool(((one.steps >= since) & (one.steps <= until) & (one.values < HALF)).any())
        for one in passes
        if one is not None
    )


def meant(record: Record, since: int, steps: int) -> bool:
    """Preference training without dropout: two models that begin as one must differ in their weights alone."""
    beside = record.get("mode.beside_training")
    if record.fact("mode.statistics") is not False or beside is None:
        return False
    beside = beside.after(since)
    return len(beside) > HALF * steps and float(beside.values.max()) == 0


def by_a_dropping_teacher(record: Record) -> Outcome | None:
    """Targets from a model that does not learn, through dropout."""
    if not asks_a_model_in_training_mode(record):
        return None
    result = done_exam(record, "frozen_targets")
    if worth_asking(record, "frozen_targets"):
        return wrong_train_eval_mode.not_judged(
            ("a model that runs without gradient is in train mode; its output may be the target"),
            wants="frozen_targets",
        )
    if result is None or not result.values["dropouts"]:
        return None
    if not result.values["unchanged"] or result.values["answers"] > 1:
        return None
    return wrong_train_eval_mode.finding(
        evidence(
            "active dropout calls on the way to the targets",
            result.values["dropouts"],
            0,
            step=result.step,
        ),
        evidence("weights behind the targets, bit for bit the same", result.values["weights"]),
        where=result.values["module"],
        line=result.values["line"],
        summary=(
            "The targets come from a model that is not trained but left in train mode: its "
            "dropout disturbs the targets"
        ),
        remedy=(
            "Call `teacher.eval()` before training begins, and again after each `.train()` "
            "of a module that contains it."
        ),
        grade="exact",
    )


def asks_a_model_in_training_mode(record: Record) -> bool:
    """At so many steps that it is no evaluation."""
    series = record.get("mode.beside_training")
    if series is None or len(series) <= IN_A_ROW or float(series.last) <= HALF:
        return False
    return float(np.median(np.diff(series.steps))) <= SELDOM
