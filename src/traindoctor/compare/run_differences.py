"""What two runs show beside their losses: verdict, laws and the numbers of their curves."""

from collections import Counter

import numpy as np

from traindoctor.checks import BY_SLUG
from traindoctor.compare.run_losses import at_equal_steps, end_of, last_tenth
from traindoctor.compare.run_rows import Cell, Row, rows_of
from traindoctor.diagnosis import Diagnosis
from traindoctor.record import Record, Series

# Clipping that changes a norm by less than this share is rounding.
CLIPPED = 1e-6


def verdict_rows(a: Diagnosis, b: Diagnosis) -> tuple[Row, ...]:
    def cells(one: Diagnosis) -> dict[str, Cell]:
        causes = [f"{c.finding.cause} ({c.finding.status})" for c in one.roots]
        return {
            "verdict": one.verdict,
            "causes": ", ".join(causes) or "none",
            "steps": one.steps,
            "reason": one.reason,
        }

    return rows_of(cells(a), cells(b))


def law_rows(a: Diagnosis, b: Diagnosis) -> tuple[Row, ...]:
    """How many tests ended how, and each cause of which the two runs show something else; what was found first."""
    first, second = states(a), states(b)
    rows = [
        Row(cause, first.get(cause), second.get(cause), BY_SLUG[cause].law or "")
        for cause in BY_SLUG
        if first.get(cause) != second.get(cause)
    ]
    found = sorted(rows, key=lambda row: not any("(" in str(cell) for cell in (row.a, row.b)))
    return (*rows_of(counts(a), counts(b)), *found)


def counts(one: Diagnosis) -> dict[str, Cell]:
    number = Counter("found" if "(" in state else state for state in states(one).values())
    return {
        "found": number["found"],
        "passed": number["holds"] + number["passed"],
        "not tested": number["not tested"],
        "do not apply": number["does not apply"],
    }


def states(one: Diagnosis) -> dict[str, str]:
    """By cause: 'broken (confirmed)' and 'holds' of a law, 'found (likely)' and 'passed' of anything else."""

    def has_law(cause: str) -> bool:
        return cause in BY_SLUG and BY_SLUG[cause].law is not None

    told = {left.cause: "not tested" for left in one.not_judged}
    told |= {left.cause: "does not apply" for left in one.not_applicable}
    told |= {c.cause: "holds" if has_law(c.cause) else "passed" for c in one.ruled_out}
    for found in (*(cause.finding for cause in one.causes), *one.advice):
        told[found.cause] = f"{'broken' if found.law else 'found'} ({found.status})"
    return told


def curve_rows(a: Record, b: Record, measure: str | None) -> tuple[Row, ...]:
    """`measure`: the loss that both have."""

    def cells(record: Record) -> dict[str, Cell]:
        loss = None if measure is None else record.get(measure)
        return {
            "training loss, last tenth": end_of(loss),
            "evaluation loss, last": _last(record.get("loss.eval")),
            "gradient norm, last tenth": _late_median(record.get("grad.norm")),
            "share of steps clipped": clip_share(record),
            "learning rate, last": _last(record.get("optim.lr")),
            "tokens per step": _median(record.get("batch.tokens")) or None,
            "rows per step": _median(record.get("batch.rows")),
            "seconds per step": _rounded(_median(record.get("time.step"))),
        }

    rows = list(rows_of(cells(a), cells(b)))
    if measure is not None:
        rows[:0] = _at_equal_steps(a[measure], b[measure])
    return tuple(row for row in rows if (row.a, row.b) != (None, None))


def _at_equal_steps(a: Series, b: Series) -> list[Row]:
    """At the first, the last and three common steps between."""
    steps, *values = at_equal_steps(a, b)
    first, second = (one.tolist() for one in values)
    chosen = sorted({round(i * (len(steps) - 1) / 4) for i in range(5)}) if len(steps) else []
    return [Row(f"training loss, step {steps[i]}", first[i], second[i]) for i in chosen]


def clip_share(record: Record) -> float | None:
    """Share of the steps whose gradient clipping made shorter; None where nothing is clipped."""
    limit = record.get("clip.limit")
    whole, clipped = record.get("grad.norm"), record.get("grad.norm_clipped")
    if limit is None or whole is None or clipped is None or not np.isfinite(limit.values).any():
        return None
    after = dict(clipped)
    pairs = [(norm, after[step]) for step, norm in whole if step in after]
    if not pairs:
        return None
    return sum(short < norm * (1 - CLIPPED) for norm, short in pairs) / len(pairs)


def _last(series: Series | None) -> float | None:
    return series.last if series is not None and len(series) else None


def _median(series: Series | None) -> float | None:
    return series.finite().median() if series is not None and len(series.finite()) else None


def _late_median(series: Series | None) -> float | None:
    if series is None or not len(series):
        return None
    return float(np.median(series.values[last_tenth(series.steps)]))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")
