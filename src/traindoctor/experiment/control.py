"""What a changed run is held against: the run as it was, or where there is no time for that, what the run itself went on to do.

The control repeated with its batches in two other orders gives the noise. Numbers only: what they mean is the checks'
business.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traindoctor.experiment.trial import Change, Plan, Trial

if TYPE_CHECKING:
    from traindoctor.experiment.patient import Patient
    from traindoctor.experiment.snapshot import StepLog

# Controls in another order of batches: the noise of the experiment.
PERMUTED = 2
# A first variant that is no better by this much ends the experiment: there is nothing to measure noise for.
WORTH = 0.02
# A variant that beats every order of the control, but by less than so many times their spread, is repeated in
# the same other orders: noisy runs (a rate that is too high makes them so) need more than one pair.
UNSURE = 5.0
# The first steps tell whether the replay does what the script did; later a run with long steps amplifies the last
# bit of a number until it is another run.
MECHANISM = 5
# A run that has stopped at the level of frequencies shows after 60 to 150 steps that a lower rate would not have: the
# kept batches are gone through so often, or as often as there is time for.
LONG_ROUNDS = 4
FEWEST_ROUNDS = 2
# A run that is its own control: so many parts of its latest batches, of at most so many batches each. Means of four
# batches of 700 characters differ by 0.03 to 0.05 nats.
PARTS, PART = 3, 4


def compare(
    plan: Plan,
    changes: Mapping[str, Change],
    *,
    seconds: float,
    promising: int = 1,
    resort: str | None = None,
) -> dict[str, Any]:
    """Control and variants, within the seconds; a variant that there was no time for is left out.

    After the first `promising` variants and then `resort`, none of them better, the rest is spared.
    """
    deadline = time.perf_counter() + seconds

    def in_time(runs: int = 1) -> bool:
        return runs * plan.seconds <= deadline - time.perf_counter()

    control = plan.control()
    before = plan.before()
    names = list(changes)
    variants = {name: plan.run(changes[name]).values() for name in names[:promising]}
    worth = any(helps(one, control.judged) for one in variants.values())
    if resort is not None and not worth:
        variants[resort] = plan.run(changes[resort]).values()
        worth = helps(variants[resort], control.judged)
    worth = worth or control.blown
    permuted = plan.permuted(PERMUTED) if worth else []
    controls = [control.judged, *(trial.judged for trial in permuted)]
    for name in names[promising:]:
        if worth and name not in variants and in_time():
            variants[name] = plan.run(changes[name]).values()
    for name, variant in variants.items():
        if worth and unsure(variant, controls) and in_time(PERMUTED):
            repeats = plan.permuted(PERMUTED, changes[name])
            variant["permuted"] = [trial.values() for trial in repeats]
    return {
        "start": plan.snapshot.step,
        "steps": plan.steps,
        "until": plan.held_out[-1].step,
        "before": before,
        "control": control.values(),
        "permuted": [trial.values() for trial in permuted],
        "variants": variants,
        "fidelity": plan.fidelity(control),
        "fidelity_at_first": plan.fidelity(control, steps=MECHANISM),
        "unit": plan.unit,
    }


def helps(variant: Mapping[str, Any], control: float) -> bool:
    return bool(variant["loss"] < control - WORTH * min(1.0, abs(control)))


def unsure(variant: Mapping[str, Any], controls: Sequence[float]) -> bool:
    """Better than every control, and not by so much that one run decides."""
    if variant["blown"] or not all(map(math.isfinite, controls)):
        return False
    gain = min(controls) - variant["loss"]
    spread = max(controls) - min(controls)
    return bool(WORTH * min(1.0, abs(controls[0])) < gain < UNSURE * spread)


def latest_batches(patient: Patient, plan: Plan) -> list[StepLog]:
    """Of the run's latest steps that were kept, behind those of the plan: as many as make whole parts."""
    logs = [one for _, one in sorted(patient.snapshot.logs.items())]
    fit = [one for one in logs if plan.data.fits(one) and math.isfinite(one.loss)]
    fit = [one for one in fit if one.step > plan.train[-1].step]
    return fit[-PARTS * min(PART, len(fit) // PARTS) :] if len(fit) >= PARTS else []


def rounds_against_itself(patient: Patient, plan: Plan) -> int:
    """No more steps than the run has made, nor than there is time for; 0 where that is too few."""
    made = patient.current_step / len(plan.train) if latest_batches(patient, plan) else 0.0
    rounds = int(min(LONG_ROUNDS, patient.seconds / max(1e-9, plan.seconds), made))
    return rounds if rounds >= FEWEST_ROUNDS else 0


def against_itself(patient: Patient, plan: Plan, rounds: int) -> dict[str, Any]:
    """There is no time to repeat the run as it was; but it has gone on, and its own losses are the control.

    The changed one is judged on the latest of its batches that were kept, which it has not seen. Parts of them are the noise.
    """
    began = time.perf_counter()
    held = latest_batches(patient, plan)
    first = replace(plan, train=plan.train[:MECHANISM])
    fidelity = first.fidelity(first.run(Change()))
    plan = replace(plan, rounds=rounds, held_out=held)
    own = [one.loss / plan.unit for one in held]

    level = sum(own) / len(own)

    def in_time() -> bool:
        return plan.seconds <= patient.seconds - (time.perf_counter() - began)

    def tried(share: float) -> dict[str, Any]:
        change = Change(rate=lambda _: share)
        found = plan.run(change).values()
        if not helps(found, level) or not in_time():
            return found
        # In another order of its batches: the worse one counts.
        again = plan.permuted(1, change)[0].values()
        return max(found, again, key=lambda one: (one["blown"], one["loss"]))

    def part(losses: list[float]) -> dict[str, Any]:
        return Trial(losses, sum(losses) / len(losses), blown=False).values()

    variants = {"lr/10": tried(0.1)}
    if not helps(variants["lr/10"], level) and in_time():
        variants["lr/100"] = tried(0.01)
    size = len(own) // PARTS
    return {
        "start": plan.snapshot.step,
        "steps": plan.steps,
        "until": plan.held_out[-1].step,
        "before": plan.before(),
        "control": part(own),
        "permuted": [part(own[k : k + size]) for k in range(0, len(own), size)],
        "variants": variants,
        "fidelity": fidelity,
        "fidelity_at_first": fidelity,
        "unit": plan.unit,
    }
