import math
from typing import Any

import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Evidence, Finding, Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import FIRST_RATES_ALONE, RateTrace, groups_of, rate_trace
from traindoctor.record import Record

EXAM = "experiment_schedule"
# A rate under a thousandth of its peak trains nothing any more.
DEAD = 1e-3
# A cosine spends 2 % of its course there, a linear decay 0.1 %: a quarter of a run is no end of a decay.
DEAD_SHARE = 0.25
DEAD_STEPS = 20
# A warm-up stuck under this share of the rate it was built for never warms up.
STUCK = 0.2
STUCK_STEPS = 50
# A scheduler stepped less often than this per optimizer step counts epochs, not steps.
PER_EPOCH = 0.1
# Settings that say how many of its own steps a schedule lasts; as many as the run has, to this share.
LENGTHS = ("total_steps", "T_max", "total_iters")
SAME_LENGTH = 0.02
# Steps with a rate of exactly 0 move nothing: no end of a decay has half of a run of them.
ZERO_SHARE = 0.5
# The highest rate is the square of the one meant, to this share: factors of 1 have no such peak by accident.
SQUARED_WITHIN, SQUARED_BELOW = 0.05, 0.5
# A warm-up and decay that overlap stay under it; no schedule of a rate this small is meant to begin at its square.
SQUARED_LEAST, SQUARED_SMALL = 0.5, 0.02
# A rate that grows by a constant factor to ten times what it was built for has gamma above 1.
RUNAWAY = 10.0
# Rates that groups were given this far apart were meant to differ; so many changes are a schedule. Nine sound runs with
# groups keep the ratio to the last digit; schedules that wrote one rate into all: 10 and 16.7.
APART, CHANGES = 2.0, 8
# So many calls, or changes of the rate, one after the other are a schedule and no accident; all by one factor, to rounding.
GROWN, ONE_FACTOR = 5, 1e-3


@check(
    code="OPT004",
    slug="lr-schedule-wrong",
    title="The learning rate does not follow the intended schedule",
    needs=["optim.lr"],
    min_steps=20,
    of_optimizer=True,
    law=laws.RULE,
    undecided="the run could not be repeated with another learning rate",
    explains=(
        "lr-too-low",
        "lr-too-high",
        "no-warmup",
        "low-precision-updates-lost",
        *NOT_LEARNING,
    ),
)
def lr_schedule_wrong(record: Record) -> Outcome:
    """
    ## What it does
    Reads the rate the optimizer really used at each step: does it reach zero long before the end, stay at the
    first value of a warm-up, grow without end, or does the scheduler drive another optimizer than the one that
    steps? Do groups that were given different rates all have the same one? For a rate that died early, the last steps are
    replayed with the highest rate of the run. Where they cannot be, the cause is only possible in a run that learned.
    ## Why it matters
    A per-epoch scheduler stepped on every batch freezes the run within its first epoch, without any error.
    ## How to fix
    Step a scheduler where its unit ends: `scheduler.step()` after every optimizer step if its numbers are
    steps (`T_max`, `total_steps`, warm-up steps), after every epoch if they are epochs. Build it with the
    number of steps the run really has, and on the optimizer that is used.
    ## When it stays silent
    A decay that reaches zero with the run's end, a warm-up that still rises, a rate that never changes and has
    no scheduler, restarts.
    """
    trace = rate_trace(record)
    if trace is None:
        return lr_schedule_wrong.not_judged("the learning rate is not known")
    if not trace.whole:
        return lr_schedule_wrong.not_judged(FIRST_RATES_ALONE)
    schedules = record.fact("schedule") or []
    for judge in (
        _zero,
        _other_optimizer,
        _stuck,
        _in_another_unit,
        _squared,
        _runaway,
        _one_for_all,
    ):
        found = judge(record, trace, schedules)
        if found is not None:
            return found
    dead = _dead(record, trace, schedules)
    if dead is None and record.fact("optimizer.groups") is None:
        return lr_schedule_wrong.not_judged("the intended schedule is not known")
    return dead or lr_schedule_wrong.clear("the learning rate follows its schedule, or is constant")


def _other_optimizer(
    record: Record, trace: RateTrace, schedules: list[dict[str, Any]]
) -> Finding | None:
    if any(s.get("drives_a_stepped_optimizer") is not False for s in schedules) or not schedules:
        return None
    worst = max(schedules, key=lambda s: s["calls"])
    if worst["calls"] < GROWN or record.num_steps < STUCK_STEPS:
        return None
    return lr_schedule_wrong.finding(
        evidence("steps of the scheduler", worst["calls"]),
        evidence("steps of the optimizer it is built on", 0, worst["calls"]),
        summary=(
            f"{worst['class']} is built on an optimizer that never steps; the one that does "
            "keeps its learning rate"
        ),
        remedy=(
            "Build the scheduler on the optimizer that is stepped, after that optimizer was "
            "last rebuilt."
        ),
        since_step=worst["since_step"],
        grade="exact",
    )


def meant_rate(record: Record) -> float | None:
    """The rate that a schedule was built for. Of the first group, as the series is: others have rates of their own."""
    optimizers = record.fact("optimizer.groups") or []
    meant = {o["groups"][0].get("initial_lr") for o in optimizers if o["groups"]}
    return float(meant.pop()) if len(meant) == 1 and None not in meant else None


def scheduler_calls(record: Record, schedules: list[dict[str, Any]]) -> int:
    """Up to now; the fact about the schedules is written more rarely."""
    calls = record.get("schedule.calls")
    if calls is not None and len(calls):
        return int(calls.last)
    return sum(s["calls"] for s in schedules)


def _one_for_all(
    record: Record, trace: RateTrace, schedules: list[dict[str, Any]]
) -> Finding | None:
    """Groups were made with different rates, and the schedule writes one into all of them."""
    optimizers, table = record.fact("optimizer.groups") or [], record.layers("optim.lr_by_group")
    if len(optimizers) != 1 or table is None or not len(table):
        return None
    groups = optimizers[0]["groups"]
    given = np.array([float(group.get("given_lr") or math.nan) for group in groups])
    if table.values.shape[1] != len(given) or not np.isfinite(given).all():
        return None
    ratio = float(given.max() / given.min())
    # The rows are the steps at which a rate changed.
    if ratio < APART or len(table) < CHANGES or np.ptp(table.values, axis=1).any():
        return None
    told = ", ".join(f"{rate:.3g}" for rate in sorted(set(given.tolist())))
    return lr_schedule_wrong.finding(
        evidence("ratio of highest to lowest learning rate the groups were given", ratio),
        evidence("ratio of highest to lowest learning rate they have", 1.0, ratio),
        summary=(
            f"The parameter groups were given different learning rates ({told}), and the "
            "schedule writes one rate into all of them"
        ),
        remedy=(
            "Keep each group's own learning rate and scale it: `group['lr'] = "
            "group['initial_lr'] * factor(step)`."
        ),
        since_step=int(table.steps[0]),
        grade="statistic",
    )


def _zero(record: Record, trace: RateTrace, schedules: list[dict[str, Any]]) -> Finding | None:
    """No step of the run has a rate."""
    if trace.peak > 0 or len(trace.series) < DEAD_STEPS:
        return None
    meant = meant_rate(record)
    kind = schedules[0]["class"] if schedules else "the script"
    return lr_schedule_wrong.finding(
        evidence("highest learning rate of the run", 0.0, meant if meant else "above 0"),
        evidence("steps", len(trace.series)),
        summary=f"The learning rate is 0 at every step: {kind} sets it, and nothing is learned",
        since_step=int(trace.series.steps[0]),
        grade="exact",
    )


def _stuck(record: Record, trace: RateTrace, schedules: list[dict[str, Any]]) -> Finding | None:
    """The rate stays near the start of a warm-up because nobody steps the scheduler, or once an epoch."""
    meant = meant_rate(record)
    if meant is None or len(trace.series) < STUCK_STEPS:
        return None
    highest = trace.peak
    calls = scheduler_calls(record, schedules)
    if highest > STUCK * meant or calls > PER_EPOCH * len(trace.series):
        return None
    if trace.series.last < trace.series.first:
        return None
    how = (
        "is never stepped"
        if calls == 0
        else f"was stepped {calls} times in {len(trace.series)} steps"
    )
    return lr_schedule_wrong.finding(
        evidence("highest learning rate of the run", highest, float(meant)),
        evidence("scheduler steps per optimizer step", calls / len(trace.series), 1.0),
        summary=(
            f"The learning rate never warms up: the scheduler {how}, and the rate stays at "
            f"{highest:.3g} of {meant:.3g}"
        ),
        since_step=0,
        grade="exact",
    )


def _in_another_unit(
    record: Record, trace: RateTrace, schedules: list[dict[str, Any]]
) -> Finding | None:
    """Built for as many steps as the run has, and stepped once an epoch: it never leaves its beginning."""
    for schedule in schedules:
        length = next((schedule[key] for key in LENGTHS if schedule.get(key)), None)
        if not isinstance(length, int | float) or record.num_steps < STUCK_STEPS:
            continue
        steps, calls = record.num_steps, schedule["calls"]
        if abs(length - steps) > SAME_LENGTH * steps or not 0 < calls <= PER_EPOCH * steps:
            continue
        return lr_schedule_wrong.finding(
            evidence("steps of the optimizer", steps),
            evidence("steps that the schedule was built for", length),
            evidence("steps of the scheduler", calls, length),
            evidence("learning rate at the end", trace.series.last),
            summary=(
                f"{schedule['class']} was built for {length:.0f} steps, as many as the run has, and was "
                f"stepped {calls} times: the learning rate is still at the beginning of its schedule"
            ),
            remedy="Call `scheduler.step()` after every optimizer step, or build it with the number of epochs.",
            since_step=schedule["since_step"],
            grade="exact",
        )
    return None


def _squared(record: Record, trace: RateTrace, schedules: list[dict[str, Any]]) -> Finding | None:
    """A schedule that is meant as a factor was given rates: the highest rate of the run is the square of the one meant."""
    meant = meant_rate(record)
    if meant is None or meant >= SQUARED_BELOW or trace.rising or not schedules:
        return None
    relative = trace.peak / meant**2
    least = SQUARED_LEAST if meant <= SQUARED_SMALL else 1 - SQUARED_WITHIN
    if not least <= relative <= 1 + SQUARED_WITHIN:
        return None
    square = "the square of" if relative >= 1 - SQUARED_WITHIN else "under the square of"
    return lr_schedule_wrong.finding(
        evidence("highest learning rate of the run", trace.peak, float(meant)),
        evidence(
            "the same, relative to the learning rate it was built with", trace.peak / meant, 1.0
        ),
        summary=(
            f"The learning rate never exceeds {trace.peak:.3g}, {square} {meant:.3g}: "
            f"{schedules[0]['class']} multiplies the optimizer's rate by what its function "
            "returns, and that returns a rate instead of a factor"
        ),
        remedy=(
            "Let the LambdaLR function return factors between 0 and 1, or build the "
            "optimizer with `lr=1.0`."
        ),
        since_step=int(trace.series.steps[0]),
        grade="exact",
    )


def _runaway(record: Record, trace: RateTrace, schedules: list[dict[str, Any]]) -> Finding | None:
    values = trace.series.values
    meant = meant_rate(record)
    if meant is None or not len(values) or trace.series.last < RUNAWAY * meant:
        return None
    if any(g.get("max_lr") for g in groups_of(record)):
        return None  # one-cycle schedules are built from their top
    changes = values[1:][values[1:] != values[:-1]] / values[:-1][values[1:] != values[:-1]]
    if len(changes) < GROWN or np.any(changes <= 1) or np.ptp(np.log(changes)) > ONE_FACTOR:
        return None
    reached = course_of(record)
    if reached is None or not (reached.broke or reached.rebounded):
        return None
    return lr_schedule_wrong.finding(
        evidence("learning rate at the end", trace.series.last, float(meant)),
        evidence("factor per change", float(np.median(changes)), 1.0),
        grade="statistic",
        summary=(
            f"The learning rate grows by a factor of {np.median(changes):.3g} each time, "
            f"from {meant:.3g} to {trace.series.last:.3g}, and the loss rises with it"
        ),
        remedy="Give the scheduler a factor below 1.",
        since_step=int(trace.series.steps[0]),
    )


def _dead(record: Record, trace: RateTrace, schedules: list[dict[str, Any]]) -> Outcome | None:
    since = trace.dead_from(DEAD)
    if since is None:
        return None
    last = int(trace.series.steps[-1]) + 1
    begun = int(trace.series.steps[0])
    if last - since < max(DEAD_STEPS, DEAD_SHARE * (last - begun)) or another_group_learns(record):
        return None
    calls = scheduler_calls(record, schedules)
    items = [
        evidence("learning rate at the end", trace.series.last, trace.peak, step=since),
        evidence(
            "share of the run with a learning rate under a thousandth of its peak",
            (last - since) / last,
            0.0,
        ),
    ]
    if calls:
        items.append(evidence("scheduler steps per optimizer step", calls / len(trace.series)))
    who = f" ({schedules[0]['class']} was stepped {calls} times)" if schedules else ""
    summary = (
        f"The learning rate falls from {trace.peak:.3g} to {trace.series.last:.2g}: from "
        f"step {since} on it is next to zero and {last - since} of {last - begun} steps "
        f"train nothing{who}"
    )
    stands_still = finding_of_zeros(record, trace, items, summary)
    result = record.exam(EXAM)
    trial = Experiment.of(result)
    if result is None:
        return stands_still or lr_schedule_wrong.not_judged(
            "whether the loss can still fall was not tested", wants=EXAM
        )
    if trial is not None and trial.faithful and trial.has("highest rate"):
        if not trial.wins("highest rate"):
            return stands_still or lr_schedule_wrong.clear(
                "the highest learning rate does not lower the loss any further"
            )
        items.append(trial.evidence("highest rate", "the highest learning rate of the run"))
        return lr_schedule_wrong.finding(
            *items, summary=summary, since_step=since, grade="experiment"
        )
    if stands_still is not None:
        return stands_still
    reached = course_of(record)
    if reached is None or math.isnan(reached.last):
        return lr_schedule_wrong.not_judged("whether the loss can still fall could not be tested")
    return lr_schedule_wrong.finding(
        *items,
        # A run that has learned may be at its end: that it could learn on is not known.
        grade="curve" if reached.learned else "statistic",
        summary=summary,
        since_step=since,
    )


def another_group_learns(record: Record) -> bool:
    """The rates are those of the first group: it may be switched off while others go on."""
    table = record.layers("optim.lr_by_group")
    if table is None or not len(table):
        return False
    return bool((table.values[-1] > DEAD * np.nanmax(table.values, axis=0)).any())


def finding_of_zeros(
    record: Record, trace: RateTrace, items: list[Evidence], summary: str
) -> Finding | None:
    """From the middle of the run or earlier to its end the rate is exactly 0."""
    since = trace.dead_from(0.0)
    if since is None:
        return None
    begun, end = int(trace.series.steps[0]), int(trace.series.steps[-1]) + 1
    share = (end - since) / (end - begun)
    if share < ZERO_SHARE:
        return None
    return lr_schedule_wrong.finding(
        *items,
        evidence("share of the run at a learning rate of exactly 0", share, 0.0),
        summary=summary,
        since_step=since,
        grade="statistic",
        wants=EXAM,
    )
