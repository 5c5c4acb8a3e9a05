from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, done_exam, evidence, wanted_exam
from traindoctor.checks.consequences import NOT_LEARNING
from traindoctor.checks.course import course_of
from traindoctor.record import ExamResult, Record

# Without normalisation a stack of this depth grows; with bounded branches (Fixup, ReZero) it does not.
DEPTH, GROWTH = 4, 8.0
MIXED = 1e-4
# Meant to run over features, by torch or by hand. BatchNorm and GroupNorm have axes of their own.
FEATURE_NORMS = (
    "layer_norm",
    "rms_norm",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "mean",
    "normalize",
)


@check(
    code="MOD009",
    slug="norm-wrong",
    title="Normalisation is missing or runs over the wrong axis",
    wants=["normalisation"],
    law=laws.APART,
    undecided="the run was not repeated with another normalisation",
    explains=(
        "gradients-exploding",
        "gradients-vanishing",
        "attention-scale-wrong",
        "lr-too-high",
        "no-warmup",
        *NOT_LEARNING,
    ),
    signs=("always-clipped",),
)
def norm_wrong(record: Record) -> Outcome:
    """
    ## What it does
    Reads from a recorded training step over which axes each normalisation takes its statistics, and how the size of activations
    grows through the depth where there is none. Where a mean over positions follows, whether examples still differ after it.
    ## Why it matters
    Statistics over the batch or over time make an output depend on other examples and on the future; a deep
    stack without normalisation blows up.
    ## How to fix
    `nn.LayerNorm(features)` or RMSNorm on the last dimension, before each block and once at the end. Use no
    BatchNorm where outputs of one text may not see each other.
    ## When it stays silent
    BatchNorm in models that are not causal, shallow stacks without normalisation, and stacks whose activations
    stay bounded. Axes whose size does not tell what they are, statistics over time in models of signals that learn.
    """
    result = wanted_exam(record, "normalisation")
    values = result.values
    if values.get("erased"):
        return pooled_away(result)
    for norm in values["norms"]:
        strange = [axis for axis in norm["axes"] if axis in ("batch", "time")]
        if strange == ["time"] and leaks(record):
            continue  # in a next-token model that is a leak, and named so
        if norm.get("signal") and not stuck(record):
            continue  # signals may be normalised over time on purpose
        if norm["op"] in FEATURE_NORMS and strange:
            return over_other_axes(norm, result.step)
    mixed = mixed_by_batch_norm(record)
    if mixed is not None:
        return norm_wrong.finding(
            evidence(
                "change of the logits of other examples", mixed, 0.0, noise=1e-6, step=result.step
            ),
            grade="statistic",
            since_step=0,
            summary=(
                "BatchNorm in a next-token model: its statistics leak other examples and the future"
            ),
        )
    growth = values["growth"] or 0.0
    none = not values["norms"] and not values["rms_by_hand"]
    if none and values["attentions"] >= DEPTH and growth >= GROWTH:
        return norm_wrong.finding(
            evidence("normalisations", 0, values["attentions"], step=result.step),
            evidence(
                "growth of the activations through the depth", growth, "below 4", step=result.step
            ),
            grade="statistic",
            since_step=0,
            summary="A deep stack without normalisation: activations grow from block to block",
        )
    return norm_wrong.clear(f"all {len(values['norms'])} normalisations run over the features")


def over_other_axes(norm: Mapping[str, Any], step: int) -> Finding:
    # Over time and features together is done on purpose in some models of signals.
    both = norm["axes"] == ["feature", "time"]
    return norm_wrong.finding(
        evidence("axes of the statistics", ", ".join(norm["axes"]), "feature", step=step),
        evidence("shape of the input", "x".join(map(str, norm["shape"]))),
        status="possible" if both else None,
        grade="statistic" if norm.get("signal") else "exact",
        where=norm["module"] or None,
        line=norm["line"],
        since_step=0,
        summary=f"{norm['op']} computes its statistics over the {' and '.join(norm['axes'])} "
        f"{'axis' if len(norm['axes']) == 1 else 'axes'} instead of the features alone",
    )


def stuck(record: Record) -> bool:
    course = course_of(record)
    return course is not None and course.stuck


def pooled_away(result: ExamResult) -> Finding:
    found = result.values["erased"]
    return norm_wrong.finding(
        evidence(
            "variance between examples after the mean, relative to before",
            found["left"],
            "1 / positions or more",
            step=result.step,
        ),
        where=found["module"] or None,
        line=found["line"],
        since_step=0,
        summary=(
            f"the normalisation makes the mean over positions 0, and {found['pool']} takes "
            "that mean: nothing of the example is left"
        ),
        grade="exact",
    )


def leaks(record: Record) -> bool:
    result = done_exam(record, "dependence")
    if result is None:
        return False
    pairs = result.values["pairs"]
    return any(p["expects_causal"] and p.get("future", 0.0) > MIXED for p in pairs)


def mixed_by_batch_norm(record: Record) -> float | None:
    result = done_exam(record, "dependence")
    if result is None:
        return None
    for pair in result.values["pairs"]:
        if pair["expects_causal"] and pair.get("mixing_op") == "batch_norm":
            if pair["other_rows"] > MIXED:
                return float(pair["other_rows"])
    return None
