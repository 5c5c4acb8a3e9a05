"""The verdict on another tool's log: what its curves show. Curves prove nothing, so it is inconclusive, whatever they show."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traindoctor.checks.base import CONFIDENCE, Finding, NotJudged, Outcome
from traindoctor.diagnosis.symptoms import Symptom
from traindoctor.diagnosis.verdict import RUN, Diagnosis, Run, judge
from traindoctor.logs import SERIES_SAID, signs
from traindoctor.record import Record
from traindoctor.record.wording import some_of

# Columns that a note lists: more than this nobody reads.
MOST_COLUMNS = 12
NO_PROOF = "a log alone proves no cause"


def diagnose_log(record: Record, outcomes: Sequence[Outcome], notes: Sequence[str]) -> Diagnosis:
    """`outcomes`: of the checks, on what the log holds."""
    shown = signs(record)
    outcomes = [of_curves(one) for one in outcomes]
    seen = [Symptom(s.name, s.sentence, s.since_step, s.grave) for s in shown]
    found = (one for one in outcomes if isinstance(one, Finding))
    seen += [Symptom(one.cause, one.summary, one.since_step) for one in found]
    run = Run(steps=logged_steps(record), symptoms=tuple(seen))
    told = (*notes, *columns(record.fact("imported")))
    made = judge(outcomes, run, notes=told)
    reason = f"{shown[0].sentence}; {NO_PROOF}"
    return replace(made, verdict="inconclusive", reason=reason, decides=f"{RUN}SCRIPT")


def logged_steps(record: Record) -> int:
    """Up to the last point; most tools count from 1."""
    spans = [record[name].steps for name in record.names]
    first, last = min(int(s[0]) for s in spans), max(int(s[-1]) for s in spans)
    return last + 1 if first == 0 else last


def of_curves(outcome: Outcome) -> Outcome:
    """The same from curves alone: a finding is possible at most, and what was not judged is what a log does not show."""
    if isinstance(outcome, NotJudged):
        return NotJudged(outcome.cause, "a log does not show this", why="not-measured")
    if not isinstance(outcome, Finding):
        return outcome
    confidence = min(outcome.confidence, CONFIDENCE["curve"][1])
    return replace(
        outcome, grade="curve", status="possible", confidence=confidence, law=None, undecided=None
    )


def columns(log: Mapping[str, Any]) -> list[str]:
    """What was read of a log: columns that are understood, those that are not, and what was left out."""
    used, ignored = log.get("used") or {}, log.get("ignored") or {}
    names = [f"{name} ({SERIES_SAID.get(series, series)})" for name, series in used.items()]
    notes = ["columns understood: " + some_of(names, MOST_COLUMNS)]
    if ignored:
        notes.append(
            "columns ignored: "
            + some_of([f"{name} ({why})" for name, why in ignored.items()], MOST_COLUMNS)
        )
    if log.get("remarks"):
        notes.append("; ".join(map(str, log["remarks"])))
    return notes
