"""What the checks of several ranks share: how often replicas agree, bit for bit."""

from collections.abc import Sequence

from traindoctor.record import Record, agreement
from traindoctor.record.wording import some_of

# Ranks that share gradients agree to the last bit at every sampled step; ranks that do not, at none. Between lie runs
# that synchronise now and then, and those whose exchange fails now and then.
NEVER = 0.1
# One step may agree or differ by the first update alone.
LEAST_STEPS = 2
MOST_NAMED = 8


def weights_meet_again(record: Record) -> bool:
    """After a step with different weights all ranks have the same ones: averaged now and then (local SGD), or at every
    step by the optimizer itself."""
    after, before = (agreement(record, name) for name in ("weights.crc", "weights.crc_before"))
    differ = [a.first_difference for a in (after, before) if a.first_difference is not None]
    if not differ:
        return after.steps >= LEAST_STEPS
    return any((a.last_equal or 0) > min(differ) for a in (after, before))


def of_ranks(numbers: Sequence[int]) -> str:
    """'rank 3', 'ranks 3, 7'"""
    return (
        f"rank{'' if len(numbers) == 1 else 's'} {some_of([str(n) for n in numbers], MOST_NAMED)}"
    )
