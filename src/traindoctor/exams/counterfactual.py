"""Experiments: K steps of the run again with one thing changed, beside the run as it was (experiment/control.py).

All are judged by the averaged last weights on batches that come later.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from traindoctor.errors import ReplayError
from traindoctor.exams.base import Exam, NotApplicable, NotPossible, TooEarly, exam
from traindoctor.experiment.arrival import by_hand
from traindoctor.experiment.control import (
    FEWEST_ROUNDS,
    LONG_ROUNDS,
    PERMUTED,
    against_itself,
    compare,
    helps,
    rounds_against_itself,
)
from traindoctor.experiment.held_fixed import held_fixed
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.rules import HALVES
from traindoctor.experiment.snapshot import FIRST_STEPS, LATER_STEPS, Snapshot, StepLog
from traindoctor.experiment.trial import MIN_BATCHES, Change, Plan

# Warm-up over half of the steps. Where the run breaks after n steps, at least n and this many more must be at
# the full rate: a warm-up that only puts the break off cures nothing.
WARMUP_SHARE = 0.5
BEYOND_BREAK = 5
LARGEST_FACTOR = 100_000
# Most scripts that clip the norm of their gradients clip it here.
USUAL_LIMIT = 1.0
NO_DECAY = {"no decay": Change(settings={"weight_decay": 0.0}, decay_by_hand=False)}
USUAL_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}


def repeated(
    name: str, title: str, steps: int, runs: int = 4
) -> Callable[[Callable[[Any], Mapping[str, Any]]], Exam]:
    """An exam of so many runs of some steps, and six later batches; at least of half the steps."""
    least = runs * (steps // 2 + 6)
    return exam(name=name, title=title, cost=runs * (steps + 6), least=least)


def first_plan(patient: Patient, runs: int = 4) -> Plan:
    keeper = _keeper(patient)
    if keeper.first is None:
        raise NotPossible("the weights of the first step were not kept")
    return plan_in_time(patient, keeper.first, FIRST_STEPS, runs)


def breaking_plan(patient: Patient) -> Plan:
    """From the last snapshot before the run breaks, if it does; else from the first one."""
    keeper = _keeper(patient)
    snapshot = keeper.breaking
    if snapshot is None or snapshot is keeper.first:
        return first_plan(patient)
    return plan_in_time(patient, snapshot, FIRST_STEPS, runs=7)


def late_plan(patient: Patient, runs: int = 4) -> Plan:
    """From the latest sound snapshot; a short run has only the first."""
    keeper = _keeper(patient)
    snapshot = keeper.latest or keeper.first
    if snapshot is None:
        raise NotPossible("no earlier weights were kept")
    if not snapshot.sound:
        raise NotPossible("the losses of the kept steps are not finite")
    return plan_in_time(patient, snapshot, LATER_STEPS, runs)


def plan_in_time(patient: Patient, snapshot: Snapshot, steps: int, runs: int) -> Plan:
    """All the steps, or half of them where `runs` of the whole would take longer than the patient has."""
    keeper = patient.snapshot
    if len(snapshot.logs) < MIN_BATCHES:
        raise TooEarly(f"only {len(snapshot.logs)} batches were kept; {MIN_BATCHES} are needed")

    def plan_of(count: int) -> Plan:
        return Plan.of(
            snapshot,
            patient.tapes,
            keeper.logs,
            steps=count,
            outside=keeper.outside.nearest(snapshot.step),
            gradients=by_hand(patient.tapes, keeper.logs),
        )

    plan = plan_of(steps)
    return plan_of(steps // 2) if runs * plan.seconds > patient.seconds else plan


def _keeper(patient: Patient) -> Any:
    keeper = patient.snapshot
    if keeper is None:
        raise NotPossible("replaying is off (--no-replay)")
    if keeper.refusal is not None:
        raise NotPossible(keeper.refusal)
    return keeper


def by_level(plan: Plan, found: dict[str, Any]) -> dict[str, Any]:
    """An experiment that is read by the level of the loss, with what tells whether that is a measure."""
    return found | {"held_fixed": held_fixed(plan.tape)}


def warm_up(plan: Plan) -> dict[str, Change]:
    """None where too few steps are left to see whether the run still breaks."""
    control = plan.control()
    rising = round(WARMUP_SHARE * plan.steps)
    if control.blown:
        rising = min(rising, plan.steps - len(control.losses) - BEYOND_BREAK)
    if rising < BEYOND_BREAK:
        return {}
    return {"warmup": Change(rate=lambda position: min(1.0, (position + 1) / rising))}


def clipping(plan: Plan) -> dict[str, Change]:
    """The usual limit, where the run breaks and nobody clips."""
    clipped = plan.gradients is not None or any(log.clips for log in plan.train)
    return {} if clipped or not plan.control().blown else {"clipped": Change(clip_at=USUAL_LIMIT)}


@repeated(
    "experiment_rate_down",
    "The first steps again with a lower rate, and with a warm-up",
    FIRST_STEPS,
    runs=5,
)
def experiment_rate_down(patient: Patient) -> dict[str, Any]:
    plan = breaking_plan(patient)
    changes = {
        "lr/3": Change(rate=lambda _: 1 / 3),
        "lr/10": Change(rate=lambda _: 0.1),
        **warm_up(plan),
        **clipping(plan),
        # A rate that is a hundred times too high is too high by ten as well: tried at once only if no other helps.
        "lr/100": Change(rate=lambda _: 0.01),
    }
    return by_level(
        plan, compare(plan, changes, seconds=patient.seconds, promising=2, resort="lr/100")
    )


@exam(
    name="experiment_rate_long",
    title="Many more steps from the start with a tenth of the rate, and with a warm-up",
    cost=4 * LONG_ROUNDS * (FIRST_STEPS + 6),
    least=FEWEST_ROUNDS * (FIRST_STEPS + 6),
)
def experiment_rate_long(patient: Patient) -> dict[str, Any]:
    plan = first_plan(patient, runs=FEWEST_ROUNDS)
    runs = 2 + PERMUTED
    rounds = int(min(LONG_ROUNDS, patient.seconds / max(1e-9, runs * plan.seconds)))
    if rounds < LONG_ROUNDS and (possible := rounds_against_itself(patient, plan)) > rounds:
        return by_level(plan, against_itself(patient, plan, possible))
    if rounds < FEWEST_ROUNDS:
        raise NotPossible("there was no time for more repeated steps")
    plan = plan.longer(rounds)
    changes = {"lr/10": Change(rate=lambda _: 0.1), **warm_up(plan)}
    return by_level(plan, compare(plan, changes, seconds=patient.seconds))


def _times(factor: int) -> Change:
    return Change(rate=lambda _: float(factor))


def _better(variants: Mapping[str, Any], factor: int, than: int) -> bool:
    return bool(variants[f"lr*{factor}"]["loss"] < variants[f"lr*{than}"]["loss"])


@repeated("experiment_rate_up", "Late steps again with a higher rate", LATER_STEPS, runs=5)
def experiment_rate_up(patient: Patient) -> dict[str, Any]:
    # At the end of a schedule any rate is low: then the first steps tell.
    plan = first_plan(patient, runs=6) if decayed(patient) else late_plan(patient, runs=6)
    values = compare(
        plan,
        {"lr*10": _times(10), "lr*100": _times(100)},
        seconds=patient.seconds,
        promising=2,
    )
    variants = values["variants"]
    # A rate may be short by many powers of ten: on, as long as each one learns faster than the last.
    factor = 1000
    while factor <= LARGEST_FACTOR and _better(variants, factor // 10, factor // 100):
        variants[f"lr*{factor}"] = plan.run(_times(factor)).values()
        factor *= 10
    if any(helps(one, values["control"]["loss"]) for one in variants.values()):
        values["permuted"] = [trial.values() for trial in plan.permuted(PERMUTED)]
    try:
        values["kl_per_update"] = plan.update_kl()
    except ReplayError:
        values["kl_per_update"] = None
    return values


@repeated("experiment_schedule", "Late steps again with the highest rate of the run", LATER_STEPS)
def experiment_schedule(patient: Patient) -> dict[str, Any]:
    plan = late_plan(patient)
    peak = max(_rates(patient), default=0.0)
    if peak <= 0:
        raise NotPossible("the learning rates of the run are not known")
    return compare(plan, {"highest rate": Change(absolute_rate=peak)}, seconds=patient.seconds)


def decayed(patient: Patient) -> bool:
    """The rates behind the latest snapshot are under half of the highest that is known."""
    keeper = _keeper(patient)
    if keeper.latest is None:
        return False
    late = max(_rates_of(keeper.latest.logs), default=0.0)
    return late < 0.5 * max(_rates(patient), default=0.0)


def _rates(patient: Patient) -> Iterator[float]:
    return _rates_of(_keeper(patient).logs.values())


def _rates_of(logs: Iterable[StepLog]) -> Iterator[float]:
    for log in logs:
        for settings in log.settings:
            if "lr" in settings:
                yield float(settings["lr"])


@repeated("experiment_decay", "Late steps again without weight decay", LATER_STEPS)
def experiment_decay(patient: Patient) -> dict[str, Any]:
    return compare(late_plan(patient), NO_DECAY, seconds=patient.seconds)


@repeated("experiment_decay_start", "The first steps again without weight decay", FIRST_STEPS)
def experiment_decay_start(patient: Patient) -> dict[str, Any]:
    return compare(first_plan(patient), NO_DECAY, seconds=patient.seconds)


@repeated("experiment_clip", "Late steps again with a wider clip limit", LATER_STEPS, runs=5)
def experiment_clip(patient: Patient) -> dict[str, Any]:
    plan = late_plan(patient)
    own = plan.gradients
    if not any(log.clips for log in plan.train) and (own is None or own.kind == "factor"):
        raise NotApplicable("no repeated step is clipped")
    changes = {"limit*10": Change(limit=10.0), "limit*100": Change(limit=100.0)}
    return compare(plan, changes, seconds=patient.seconds, promising=2)


@repeated("experiment_adam", "The first steps again with Adam's usual settings", FIRST_STEPS)
def experiment_adam(patient: Patient) -> dict[str, Any]:
    change = Change(settings=USUAL_ADAM, fresh_state=True)
    return compare(first_plan(patient), {"usual Adam settings": change}, seconds=patient.seconds)


@repeated(
    "experiment_precision",
    "Steps again with a float32 copy of the half-precision weights",
    FIRST_STEPS,
)
def experiment_precision(patient: Patient) -> dict[str, Any]:
    """From the first step; where the weights are half ones only later on, from the latest weights that were kept."""
    plan = first_plan(patient)
    if not _steps_halves(plan):
        plan = late_plan(patient)
    if not _steps_halves(plan):
        raise NotApplicable("no weight that is stepped is in half precision")
    changes = {"float32 copy": Change(float_copy=True)}
    return by_level(plan, compare(plan, changes, seconds=patient.seconds))


def _steps_halves(plan: Plan) -> bool:
    kept = plan.snapshot
    return any(kept.parameters[name].dtype in HALVES for group in kept.groups for name in group)


@repeated(
    "experiment_loss_scale",
    "The first steps again with the factor on the loss, or on its gradients, undone",
    FIRST_STEPS,
)
def experiment_loss_scale(patient: Patient) -> dict[str, Any]:
    plan = first_plan(patient)
    own = plan.gradients
    if own is not None and own.kind == "factor":
        changes = {"gradients undivided": Change(loss=1 / own.value, fresh_state=True)}
        return compare(plan, changes, seconds=patient.seconds) | {"factor": own.value}
    passes = len(plan.tape.roots)
    if passes < 2:
        raise NotApplicable("each step has one backward pass, and nothing divides its gradients")
    change = Change(loss=1 / passes, fresh_state=True)
    return compare(plan, {"loss/n": change}, seconds=patient.seconds) | {"passes": passes}
