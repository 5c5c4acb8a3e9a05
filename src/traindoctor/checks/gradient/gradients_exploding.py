import numpy as np

from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.gradient.base import NO_CURE
from traindoctor.checks.loss.base import CALM, crash_of, located, not_finite_from, place, swollen
from traindoctor.checks.optimizer.base import first_norm
from traindoctor.record import Record, Series

# Healthy runs stay within a factor of 100 of their early norm; a run on its way to NaN leaves that within steps.
GROWTH = 1e3
EARLY = 10
# The norm of the untrained model over later ones and over 1: a chaotic rollout had 4e7; a first loss of 70 (weights
# that start far too large) had 100.
HUGE_AT_FIRST = 1e6
# Fewer norms show no growth.
LEAST = 3
# The share of all norms from which on their growth is no passing spike; a norm under this is none to grow from.
LASTING, TINY = 0.1, 1e-12


@check(
    code="GRD004",
    slug="gradients-exploding",
    title="Gradient norms grow by orders of magnitude",
    needs=["grad.norm"],
    min_steps=1,
    undecided=NO_CURE,
    without_cure=True,
    explains=("clip-too-tight", "fp16-overflow", "nan-from-op", *NOT_LEARNING),
    signs=("always-clipped",),
)
def gradients_exploding(record: Record) -> Outcome:
    """
    ## What it does
    Compares the largest gradient norm with the median of the first steps. Where the run broke, it looks at how large
    the values were that entered the op that overflowed; and it replays the run at its own rate with gradients clipped
    to a norm of 1, beside lower rates.
    ## Why it matters
    Each step is thrown further than the last; the loss rises and ends in NaN.
    ## How to fix
    Clip the norm (`clip_grad_norm_(model.parameters(), 1.0)`), shorten the rate, normalise deep or recurrent parts.
    ## When it stays silent
    Single spikes that clipping catches, norms that rise while the loss falls by a few times. Named first only when
    nothing else (rate, scale, initialisation, a wrong backward) explains it.
    """
    if (cured := clipping_cures(record)) is not None:
        return cured
    norms = record["grad.norm"]
    # In the first step there is nothing but the untrained model, and no norm is needed to tell.
    if len(norms) < LEAST and not_finite_from(record) != 0:
        return gradients_exploding.not_judged(
            f"needs the gradient norm on {LEAST} steps, saw {len(norms)}", why="too-few-steps"
        )
    if (overflow := activations_overflow(record)) is not None:
        return overflow
    finite = with_those_at_the_step(record).finite()
    if len(finite) < LEAST:
        if (thrown := weights_thrown(record)) is not None:
            return thrown
        return gradients_exploding.not_judged("hardly any gradient norm is finite")
    if (at_first := huge_at_first(record, finite)) is not None:
        return at_first
    # Steps without any gradient (a stage that trains nothing, a scaler that skips) are no measure of the others.
    positive = finite.values[finite.values > 0]
    early = float(np.median(positive[:EARLY])) if len(positive) else 0.0
    grown = finite.where(lambda v: v > GROWTH * max(early, TINY))
    broke = not_finite_from(record)
    # Many steps, or the last ones before the end: a spike that passes is no explosion.
    lasting = len(grown) >= LASTING * len(finite) or (broke is not None and len(grown) > 0)
    if not len(grown) and broke is not None and crash_of(record) is None:
        # Norms that are taken at some steps only say nothing of the steps between the last finite one and the end.
        return gradients_exploding.not_judged(
            f"the run broke at step {broke}, and the gradient norms before it do not show why"
        )
    if not len(grown) or not lasting:
        return gradients_exploding.clear(
            f"largest gradient norm {float(finite.values.max()):.3g}, {early:.3g} at the start"
        )
    largest = float(grown.values.max())
    return gradients_exploding.finding(
        evidence(
            "largest gradient norm", largest, early, noise=GROWTH * early, step=int(grown.steps[0])
        ),
        grade="statistic",
        summary=f"the gradient norm grows from {early:.3g} to {largest:.3g}",
        since_step=int(grown.steps[0]),
    )


def weights_thrown(record: Record) -> Outcome | None:
    """The run broke before its norms could be compared; how far the first steps threw the weights is known."""
    crash = crash_of(record)
    if crash is None:
        return None
    now, start = (crash.values.get(f"largest_weight{when}") for when in ("", "_at_start"))
    if not now or not start or not now > CALM * max(start, 1.0):
        return None
    step = int(crash.values["step"])
    return gradients_exploding.finding(
        evidence("largest weight when the run broke", now, start, step=step),
        grade="statistic",
        summary=f"the first {step} steps drive the largest weight from {start:.3g} to {now:.3g}",
        since_step=step,
    )


def huge_at_first(record: Record, norms: Series) -> Outcome | None:
    """Long products (a rollout, a deep stack) that explode in the untrained model; the first steps throw it away."""
    first, later = float(norms.values[0]), float(np.median(norms.values[1:]))
    reached = course_of(record)
    if norms.steps[0] != 0 or not first > HUGE_AT_FIRST * max(later, 1.0):
        return None
    if reached is None or reached.learned:
        return None
    return gradients_exploding.finding(
        evidence("gradient norm of the untrained model", first, later, step=0),
        grade="statistic",
        summary=(
            f"the gradient norm is {first:.3g} at initialisation and {later:.3g} later: the "
            "first steps throw the weights far off"
        ),
        since_step=0,
    )


def with_those_at_the_step(record: Record) -> Series:
    """Norms are taken at some steps only; those that the update was measured with are as good."""
    norms, more = record["grad.norm"], record.get("grad.norm_at_step")
    return norms if more is None else norms.with_more_of(more)


def clipping_cures(record: Record) -> Outcome | None:
    """The run breaks, and clipping alone lets its own rate learn better than any lower one."""
    trial = Experiment.of(record.exam("experiment_rate_down"))
    norm = first_norm(record)
    if trial is None or not trial.faithful or not trial.clipping_cures(norm):
        return None
    lower = [n for n in ("lr/3", "lr/10", "lr/100") if n in trial.variants and not trial.blown[n]]
    best = min(lower, key=lambda name: trial.variants[name], default=None)
    items = [
        trial.evidence("clipped", "gradients clipped to a norm of 1"),
        evidence("gradient norm of the untrained model", norm, "below 5", step=0),
    ]
    if best is not None:
        items.append(
            trial.evidence(best, f"the learning rate divided by {best.removeprefix('lr/')}")
        )
    return gradients_exploding.finding(
        *items,
        grade="experiment",
        summary=(
            f"Gradients with a norm of {norm:.3g} break the run within {trial.steps} steps; "
            "with clipping to 1 the same learning rate reaches "
            f"{trial.variants['clipped']:.3f}, better than any lower rate without clipping"
        ),
        since_step=trial.start,
    )


def activations_overflow(record: Record) -> Outcome | None:
    """Values that grew from layer to layer (no norm, a gain above 1, recurrence) until a product overflows."""
    crash = crash_of(record)
    size = None if crash is None else swollen(crash.values)
    if crash is None or size is None or not crash.values.get("weights_finite", False):
        return None
    values = crash.values
    return gradients_exploding.finding(
        evidence(f"largest input of {values['op']}", size, "below 1e4", step=int(values["step"])),
        evidence("largest weight", values["largest_weight"]),
        grade="statistic",
        summary=(
            f"Activations grow to {size:.1g} through the model and overflow in "
            f"{values['op']} at {place(values)}"
        ),
        **located(values),
    )
