"""What the checks declare of their causes, by slug: what explains what, and which causes are special in a verdict.

`EXPLAINS[x]` lists what x brings about by itself. A finding that a better or equally sure finding explains is
a consequence, not a cause. The table is transitive and has no circle (a test walks it).
"""

from collections.abc import Mapping
from functools import cache

from traindoctor.checks import CHECKS

EXPLAINS: Mapping[str, tuple[str, ...]] = {check.slug: check.explains for check in CHECKS}
URGENT = frozenset(check.slug for check in CHECKS if check.urgent)
ESSENTIAL = frozenset(check.slug for check in CHECKS if check.essential)
OUTCOME_ONLY = frozenset(check.slug for check in CHECKS if check.outcome_only)
COSTS_ONLY_TIME = frozenset(check.slug for check in CHECKS if check.costs_only_time)
WITHOUT_CURE = frozenset(check.slug for check in CHECKS if check.without_cure)
OVER_BATCHES = frozenset(check.slug for check in CHECKS if check.over_batches)


@cache
def may_show(cause: str, symptom: str) -> bool:
    """A symptom that checks claim as a sign of theirs speaks for no other cause: shared layers do not clip gradients."""
    claimed = frozenset(check.slug for check in CHECKS if symptom in check.signs)
    return not claimed or cause in claimed


@cache
def consequences(cause: str) -> frozenset[str]:
    """Everything `cause` explains, directly or through others."""
    found: set[str] = set()
    waiting = list(EXPLAINS.get(cause, ()))
    while waiting:
        slug = waiting.pop()
        if slug not in found:
            found.add(slug)
            waiting.extend(EXPLAINS.get(slug, ()))
    return frozenset(found)
