import numpy as np

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence
from traindoctor.checks.consequences import TOO_LONG, TOO_SHORT
from traindoctor.checks.course import course_of
from traindoctor.checks.experiments import Experiment
from traindoctor.checks.optimizer.base import groups_of
from traindoctor.record import Record

EXAM = "experiment_adam"
# Beta1 this high beside a lower beta2: the pair was given in reverse order.
REVERSED_FIRST = 0.98
# Nobody who knows why goes outside these; inside them every published recipe lies.
FIRST = (0.0, 0.98)
SECOND = (0.5, 0.9999)
# Eps above the usual 1e-8 .. 1e-6 that is larger than most of sqrt(v) turns Adam into SGD with a tiny rate.
EPS_USUAL = 1e-6
UNDER_EPS = 0.5
# Above nearly all of them, and larger than any recipe's for a transformer, it needs no trial to be likely.
UNDER_EPS_ALONE, EPS_NEVER = 0.95, 1e-3


@check(
    code="OPT010",
    slug="adam-settings-bad",
    title="Adam's betas or eps make its updates meaningless",
    needs=["optim.lr"],
    min_steps=8,
    of_optimizer=True,
    law=laws.RULE,
    undecided="the usual settings could not be tried",
    explains=("lr-too-high", "no-warmup", "low-precision-updates-lost", *TOO_LONG, *TOO_SHORT),
)
def adam_settings_bad(record: Record) -> Outcome:
    """
    ## What it does
    Reads betas and eps of each group (of updates written by hand those that the weights move by), and how large eps is beside Adam's own denominator; settings out of the
    ordinary are tried against the usual ones (0.9, 0.999, 1e-8) on a replay from the first step.
    ## Why it matters
    Betas in reverse order average the gradient over a thousand steps and normalise it by the last ten; an eps
    above sqrt(v) shrinks every update by their ratio.
    ## How to fix
    `betas=(0.9, 0.999)` or `(0.9, 0.95)`, `eps=1e-8`.
    ## When it stays silent
    Betas and eps of published recipes, and unusual ones with which the run is no worse.
    """
    if record.fact("optimizer.groups") is None:
        return adam_settings_bad.not_judged("the optimizer's settings are not known")
    groups = [g for g in groups_of(record) if g.get("betas") is not None and "eps" in g]
    if not groups:
        return adam_settings_bad.not_applicable("no optimizer with betas is used")
    oddities = [text for g in groups if (text := _oddity(g, _share_under_eps(record)))]
    if not oddities:
        return adam_settings_bad.clear("betas and eps are in the usual range")
    result = record.exam(EXAM)
    share = _share_under_eps(record)
    odd = next(g for g in groups if _oddity(g, share))
    betas, eps = odd["betas"], float(odd["eps"])
    items = [
        evidence(
            "betas, found by how the weights move" if odd["by_hand"] else "betas",
            f"({betas[0]:g}, {betas[1]:g})",
            "(0.9, 0.999)",
        ),
        evidence("eps", eps, 1e-8),
    ]
    if np.isfinite(share):
        items.append(evidence("share of entries whose sqrt(v) is below eps", share, 0.0))
    summary = f"Adam cannot work with these settings: {oddities[0]}"
    trial = Experiment.of(result)
    if trial is not None and trial.faithful:
        if not trial.wins("usual Adam settings"):
            return adam_settings_bad.clear("with the usual settings the run is no better")
        items.append(trial.evidence("usual Adam settings", "betas (0.9, 0.999) and eps 1e-8"))
        return adam_settings_bad.finding(*items, summary=summary, since_step=0, grade="experiment")
    reversed_ = float(betas[0]) >= REVERSED_FIRST and float(betas[0]) > float(betas[1])
    reached = course_of(record)
    learns = reached is not None and reached.learned_well
    if reversed_ or (eps >= EPS_NEVER and share >= UNDER_EPS_ALONE and not learns):
        wants = EXAM if result is None else None
        return adam_settings_bad.finding(
            *items, grade="statistic", summary=summary, since_step=0, wants=wants
        )
    if result is None:
        return adam_settings_bad.not_judged("the usual settings were not tried", wants=EXAM)
    return adam_settings_bad.not_judged("the usual settings could not be tried")


def _share_under_eps(record: Record) -> float:
    """In the middle of the sampled steps and parameters; NaN where no moments were read."""
    table = record.layers("adam.under_eps")
    if table is None or not len(table) or not np.isfinite(table.values).any():
        return float("nan")
    return float(np.nanmedian(table.values))


def _oddity(group: dict[str, object], under_eps: float) -> str | None:
    first, second = (float(beta) for beta in group["betas"][:2])  # type: ignore[index]
    eps = float(group["eps"])  # type: ignore[arg-type]
    if first > second and first >= REVERSED_FIRST:
        return f"betas ({first:g}, {second:g}) are swapped"
    if not FIRST[0] <= first <= FIRST[1]:
        return f"beta1 = {first:g} averages the gradient over {1 / (1 - first):.0f} steps"
    if not SECOND[0] <= second <= SECOND[1]:
        return f"beta2 = {second:g} is far from the usual 0.95 to 0.999"
    if eps > EPS_USUAL and under_eps > UNDER_EPS:
        return f"eps = {eps:g} is larger than {under_eps:.0%} of the denominators it is added to"
    if eps > EPS_USUAL and np.isnan(under_eps):
        return f"eps = {eps:g} is far above the usual 1e-8"  # moments that could not be read
    return None
