import statistics
from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import (
    Finding,
    Outcome,
    Status,
    check,
    done_exam,
    evidence,
    wanted_exam,
    worth_asking,
)
from traindoctor.checks.consequences import TOO_LONG, TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.loss.base import scale_free
from traindoctor.record import (
    ExamResult,
    Record,
    agreement,
    comparable,
    exchange_factors,
    held_by_all,
    medians_by_rank,
)

# The sum over a step is 1.000 in every sound script with several backward passes, 8.000 for eight undivided ones.
TOLERANCE = 0.02
# With one backward pass a factor may be meant (a weight of 0.5, a sum over few labels): only factors from here on
# are looked at, and the run must suffer.
LARGE = 8.0
# Weights down to 1 / 3 are meant more often than a second division; 1 / 4 and less of so many micro-batches hardly are.
MEANT_WEIGHTS = 4
# The gradient that arrives at the optimizer is that of the scaled loss, unchanged: its cosine and its length.
ONE_DIRECTION, UNCHANGED = 0.99, 0.1
# What all ranks do at every step has one factor, to rounding; something else that the script does to its gradients has not.
LEAST_EXCHANGES, EXCHANGED_ALIKE, MOST_ALIKE = 3, 1e-3, 0.8
# Batches that are padded, or sorted by length, differ by less between ranks, and not always the same way.
UNEQUAL = 4.0
EXAM, UNDIVIDED = "experiment_loss_scale", "gradients undivided"


@check(
    code="LOS002",
    slug="loss-scale-wrong",
    title="The loss enters the gradient with a wrong factor",
    wants=["loss_coefficient"],
    law=laws.WEIGHT,
    undecided="the weight may be meant",
    explains=("lr-too-high", "clip-too-tight", *TOO_LONG, *TOO_SHORT),
    urgent=True,
    signs=("always-clipped",),
)
def loss_scale_wrong(record: Record) -> Outcome:
    """
    ## What it does
    Sums, over one optimizer step, the derivative of what backward is called on by the mean loss per target at the
    loss function. A mean over all micro-batches has exactly 1. Gradients that the script divides itself before the
    step are a factor as well: replayed without it, the run shows whether it suffers. A divergence that is averaged over
    the classes, too, is compared with the terms beside it. With several ranks, what the optimizer gets is compared with the
    mean of what their backward passes left.
    ## Why it matters
    A factor k in the gradient is a learning rate k times too long for SGD, and makes every clipping threshold,
    epsilon and warm-up mean something else.
    ## How to fix
    Divide each micro-batch's loss by the number of micro-batches; use `reduction="mean"`, or divide a sum by the
    number of targets; average over ranks once, by their number; call `scaler.unscale_` or `scaler.step` so that the scale is taken out again.
    ## When it stays silent
    Accumulation that is divided, sums divided by the number of items, several loss terms of their own weights, and
    scale-free optimizers (Adam) in a run that learns: there a factor is at most a possible cause.
    """
    result = wanted_exam(record, "loss_coefficient")
    values = result.values
    main = values["main"]
    return (
        _still_scaled(record, result)
        or _exchanged(record, result, main)
        or _accumulation(record, result, main)
        or _sum_for_mean(record, result, main)
        or _divided_by_hand(record, main)
        or _mean_over_classes(result)
        or loss_scale_wrong.clear("the gradient is that of a mean loss")
    )


def _still_scaled(record: Record, result: ExamResult) -> Finding | None:
    scale, arrived = float(result.values["scale"]), result.values["arrived"]
    if scale <= 2 or arrived is None or (result.values["arrived_cosine"] or 0) < ONE_DIRECTION:
        return None
    # Clipping makes gradients shorter: only what comes through unchanged was surely not unscaled.
    if not abs(arrived - 1) < UNCHANGED:
        return None
    return loss_scale_wrong.finding(
        evidence(
            "gradient at the step relative to the true gradient",
            scale * arrived,
            1.0,
            noise=0.01,
            step=result.step,
        ),
        summary=(
            f"the optimizer gets gradients that are still multiplied by the loss scale {scale:g}"
        ),
        remedy="Step through `scaler.step(optimizer)`, or call `scaler.unscale_(optimizer)` before the step.",
        since_step=0,
        status=_status(record),
        grade="exact",
    )


def _exchanged(record: Record, result: ExamResult, main: Mapping[str, Any]) -> Finding | None:
    """Ranks whose gradients are summed, or divided by another number than there are: the law of a mean loss over all ranks."""
    if len(record.ranks) < 2 or comparable(record) is not None or held_by_all(record):
        return None
    factors = exchange_factors(record)
    if len(factors) < LEAST_EXCHANGES or float(result.values["scale"]) != 1:
        return None
    factor = statistics.median(factors)
    alike = sum(abs(one - factor) <= EXCHANGED_ALIKE * abs(factor) for one in factors)
    own = float(main["coefficient"])
    # A loss that is its rank's part of a sum over all is added up; where ranks differ in targets, no rank's tells.
    if alike < MOST_ALIKE * len(factors) or factor <= 0 or abs(own - 1) > TOLERANCE:
        return None
    if abs(factor - 1) <= TOLERANCE:
        return _unequal_parts(record, len(factors))
    # Ranks that share one loss have a part of its gradient each, and the parts are added up.
    if agreement(record, "loss.root").equal:
        return None
    ranks, course = len(record.ranks), course_of(record)
    summed = abs(factor - ranks) <= TOLERANCE * ranks
    # A sum is meant now and then, with a rate that suits it.
    meant = summed and (course is None or course.learned)
    return loss_scale_wrong.finding(
        evidence(
            "gradient at the step relative to the mean of the ranks' gradients",
            factor,
            1.0,
            noise=EXCHANGED_ALIKE,
        ),
        evidence("steps compared", len(factors)),
        summary=f"the optimizer gets {factor:.3g} times the mean of the {ranks} ranks' gradients"
        + (": they are added up and not averaged" if summed else ""),
        remedy=(
            "Average once: `DistributedDataParallel` does it in backward; by hand, divide the sum by "
            "`dist.get_world_size()`."
        ),
        since_step=0,
        status="possible" if meant else _status(record),
        grade="exact",
    )


def _unequal_parts(record: Record, steps: int) -> Finding | None:
    """Every rank divides by its own number of targets, and all ranks count the same."""
    targets = [one for one in record.once(medians_by_rank, "target.valid") if one]
    if len(targets) < len(record.ranks) or max(targets) < UNEQUAL * min(targets):
        return None
    few, many = targets.index(min(targets)), targets.index(max(targets))
    times = targets[many] / targets[few]
    return loss_scale_wrong.finding(
        evidence(f"targets of a batch on rank {many}, by those on rank {few}", times, 1.0),
        evidence("steps at which the ranks' gradients are averaged", steps),
        summary=f"each of the {len(targets)} ranks takes the mean over its own targets, and all ranks count the same: a "
        f"target of rank {few} counts {times:.3g} times as much as one of rank {many}",
        remedy="Divide the sum of each rank by the mean number of targets of all ranks (`all_reduce` it), or give all "
        "ranks batches of one kind.",
        since_step=0,
        grade="statistic",
        status="likely",
    )


def _mean_over_classes(result: ExamResult) -> Finding | None:
    """A divergence beside another term that is a mean over the classes, too: against that term it is as many times too small."""
    groups = result.values["groups"]
    for group in groups:
        classes = group.get("over_classes")
        # The square of the temperature is no weight: gradients through it are as much smaller.
        meant = group["coefficient"] / group.get("temperature", 1.0) ** 2
        if classes and len(groups) > 1 and classes >= LARGE * meant:
            return loss_scale_wrong.finding(
                evidence(
                    "weight of the divergence in the loss", meant / classes, meant, step=result.step
                ),
                summary=(
                    f"`kl_div` with `reduction='mean'` divides by the {classes} classes as well as by the "
                    f"examples: beside the other loss terms the divergence is {classes} times too small"
                ),
                remedy="Use `reduction='batchmean'`, or sum over the classes before the mean.",
                line=group["line"],
                since_step=0,
                grade="statistic",
            )
    return None


def _accumulation(record: Record, result: ExamResult, main: Mapping[str, Any]) -> Finding | None:
    passes, calls = int(result.values["backwards"]), int(main["calls"])
    # Gradients of all micro-batches that are divided by their number before the step are a mean as well.
    coefficient = float(main["coefficient"]) * _own_factor(record)
    if passes < 2 or calls < passes:
        return None
    status = _status(record)
    times = calls / passes  # several terms on one line, or one mean taken part by part
    undivided, twice = calls, times / passes
    if any(abs(coefficient - whole) < TOLERANCE * whole for whole in (1.0, times)):
        return None
    if abs(coefficient - undivided) < TOLERANCE * undivided:
        said = (
            f"the gradients of {passes} micro-batches are added up and not averaged: the "
            f"gradient is {coefficient:.3g} times too large"
        )
        change = f"Divide each micro-batch's loss by {passes} before `backward()`."
    elif abs(coefficient - twice) < TOLERANCE * twice:
        # A weight of a half is as often meant as not.
        status = "possible" if passes < MEANT_WEIGHTS else status
        said = (
            f"the loss of {passes} micro-batches is divided twice: the gradient is "
            f"{coefficient:.3g} times what it should be"
        )
        change = f"Divide by {passes} once only: a framework that accumulates does it already."
    else:
        return None
    return loss_scale_wrong.finding(
        evidence(
            "factor of the mean loss in the step's gradient",
            coefficient,
            times,
            noise=TOLERANCE,
            step=result.step,
        ),
        evidence("backward passes per step", passes, step=result.step),
        summary=said,
        remedy=change,
        line=main["line"],
        since_step=0,
        status=status,
        grade="exact",
    )


def _sum_for_mean(record: Record, result: ExamResult, main: Mapping[str, Any]) -> Finding | None:
    coefficient = float(main["coefficient"]) * _own_factor(record)
    if coefficient < LARGE or int(result.values["backwards"]) > 1:
        return None
    course = course_of(record)
    if course is None or not course.broke:
        if course is None or course.learned or scale_free(record):
            return None
        status: Status = "possible"
    else:
        status = "possible" if scale_free(record) else "likely"
    summed = abs(coefficient - float(main["valid"])) < TOLERANCE * coefficient
    said = (
        f"summed over {main['valid']:.0f} targets" if summed else f"multiplied by {coefficient:.3g}"
    )
    return loss_scale_wrong.finding(
        evidence(
            "factor of the mean loss in the step's gradient",
            coefficient,
            1.0,
            noise=TOLERANCE,
            step=result.step,
        ),
        summary=f"the loss is {said}, and the run breaks",
        remedy='Use `reduction="mean"`, or divide the sum by the number of targets.'
        if summed
        else f"Take the factor {coefficient:.3g} out of the loss.",
        line=main["line"],
        since_step=0,
        status=status,
        grade="exact",
    )


def _own_factor(record: Record) -> float:
    """What the script itself multiplies its gradients by before the step; 1 where it does not."""
    arrival = done_exam(record, "gradient_arrival")
    if arrival is None or arrival.values["by_hand"] != "factor":
        return 1.0
    return float(arrival.values["value"])


def _divided_by_hand(record: Record, main: Mapping[str, Any]) -> Outcome | None:
    """`p.grad /= n` in a loop of the script's own, where the loss is a mean already."""
    arrival = record.exam("gradient_arrival")
    ended = arrival is not None and record.fact("run.ended") is not None
    if worth_asking(record, "gradient_arrival") and not ended:
        return loss_scale_wrong.not_judged(
            ("it is not known whether the gradients reach the optimizer as backward left them"),
            wants="gradient_arrival",
        )
    factor = _own_factor(record)
    if factor == 1 or arrival is None:
        return None
    total = factor * float(main["coefficient"])
    # Gradients of a sum, divided by the number of its terms, are those of the mean.
    if 1 / LARGE < total < LARGE:
        return None
    result = record.exam(EXAM)
    if result is None:
        return loss_scale_wrong.not_judged(
            "the run was not repeated without the factor", wants=EXAM
        )
    trial = Experiment.of(result)
    if trial is None or not trial.faithful or not trial.wins(UNDIVIDED):
        return None
    return loss_scale_wrong.finding(
        trial.evidence(UNDIVIDED, "the gradients as backward leaves them"),
        evidence(
            "gradient at the step relative to that of the mean loss",
            total,
            1.0,
            noise=TOLERANCE,
            step=arrival.step,
        ),
        grade="experiment",
        summary=(
            f"the script multiplies its gradients by {factor:.3g} before the step although "
            "the loss is already a mean: without that the run learns"
        ),
        remedy="Divide once: either the loss or the gradients.",
        since_step=0,
    )


def _status(record: Record) -> Status | None:
    """Exact as the factor is, Adam does not feel it: in a run that learns it is only a possibility."""
    if not scale_free(record):
        return None
    course = course_of(record)
    return "possible" if course is None or not course.broke else "likely"
