"""Runs every check on a record, and orders the exams that would settle what is open."""

import difflib
import shlex
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traindoctor.checks import BY_SLUG, CHECKS
from traindoctor.checks.base import Check, Finding, NotJudged, Outcome, watched
from traindoctor.diagnosis.of_a_log import diagnose_log
from traindoctor.diagnosis.rules import OUTCOME_ONLY, URGENT, consequences
from traindoctor.diagnosis.symptoms import symptoms
from traindoctor.diagnosis.verdict import ENOUGH_STEPS, RUN, Diagnosis, Run, judge
from traindoctor.errors import RecordError, TraindoctorError
from traindoctor.fixes import fix_for
from traindoctor.record import ExamResult, Record, open_record
from traindoctor.record.stages import later_stages, of_the_stage, stretches

# An exam nobody has timed yet counts as this much, in the unit of the others (steps or seconds).
UNKNOWN_COST = 1.0
# Cheaper than this makes no difference.
FREE = 0.01


def diagnose(
    source: Record | Path | str,
    *,
    checks: Sequence[Check] = CHECKS,
    ended_early: str | None = None,
    enough_steps: int = ENOUGH_STEPS,
) -> Diagnosis:
    """`diagnose("runs/last-night")` judges a record, or the run folder that holds it, with today's checks.

    Of a run whose record has no end nothing good is said yet. `ended_early`: why the rest of it was not recorded;
    `enough_steps`: no shorter run is healthy.
    """
    record = source if isinstance(source, Record) else open_record(source)
    notes: list[str] = []
    outcomes = [_as_it_ended(record, one) for one in examine(record, checks=checks, notes=notes)]
    if record.fact("imported") is not None and record.names:
        return diagnose_log(record, outcomes, notes)
    with np.errstate(all="ignore"):
        seen, percent, seconds = symptoms(record), overhead_percent(record), own_seconds(record)
    run = Run(
        steps=record.num_steps,
        measured=_measured(record),
        symptoms=seen,
        running=watched(record) and record.fact("run.ended") is None,
        unmade=unmade(record, outcomes),
        too_early=too_early(record, outcomes),
        ended_early=ended_early or record.fact("watch.ended"),
        enough_steps=enough_steps,
        command=command_of(record),
        proven=record.fact("doctor.proven", {}),
    )
    made = judge(
        outcomes,
        run,
        overhead_percent=percent,
        overhead_seconds=seconds,
        after_seconds=after_seconds(record),
        notes=(*notes, *(_first_and_last(n.text) for n in record.notes if n.level == "fault")),
    )
    return made if run.running else with_fixes(made, record)


def with_fixes(made: Diagnosis, record: Record) -> Diagnosis:
    """The causes with the diffs that cure them, where the script's text allows a change that is surely right."""
    causes = [replace(one, fix=fix_for(one.finding, record)) for one in made.causes]
    return replace(made, causes=tuple(causes))


def _as_it_ended(record: Record, outcome: Outcome) -> Outcome:
    """What was asked and could not be answered is not possible in this run: more time would not decide it."""
    if not isinstance(outcome, NotJudged) or outcome.why != "not-made":
        return outcome
    made = None if outcome.wants is None else record.exam(outcome.wants)
    if outcome.wants is not None and made is None:
        return outcome
    if made is not None and (made.values.get("stopped") or made.values.get("too_early")):
        return outcome
    return replace(outcome, why="not-possible")


def _measured(record: Record) -> int | None:
    """The steps that were measured: the others were counted, or passed in silence. None for a log."""
    for name in ("backward.calls", "self.seconds"):
        if (series := record.get(name)) is not None:
            return len(series)
    return None


def unmade(record: Record, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Exams that there was no time for, and those that were to be made once more on a later step, and were not."""
    asked = _asked_again(record, outcomes)
    again = [name for name, made in asked if made.done or made.values.get("stopped")]
    return (*(record.fact("doctor.unmade") or ()), *again)


def too_early(record: Record, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Exams that could say nothing on the step they were made on, and for which no later one came."""
    again = _asked_again(record, outcomes)
    return tuple(name for name, made in again if made.values.get("too_early"))


def _asked_again(record: Record, outcomes: Iterable[Outcome]) -> list[tuple[str, ExamResult]]:
    """Exams that were made and that a check still wants."""
    asked = {one.wants for one in outcomes if isinstance(one, NotJudged) and one.wants is not None}
    found = ((name, record.exam(name)) for name in sorted(asked))
    return [(name, made) for name, made in found if made is not None]


def command_of(record: Record) -> str | None:
    """How the run was started; None for a log or a watch from Python."""
    script = record.fact("script")
    if not isinstance(script, Mapping) or not script.get("path"):
        return None
    module = ["-m"] if script.get("module") else []
    if script.get("patch"):
        module = ["--verify-fix", str(script["patch"])]
    return RUN + shlex.join([*module, str(script["path"]), *map(str, script.get("argv") or ())])


def examine(
    record: Record, *, checks: Sequence[Check] = CHECKS, notes: list[str] | None = None
) -> list[Outcome]:
    """Every check's outcome. A check that fails judges nothing, and its fault is told."""
    outcomes: list[Outcome] = []
    stages, parts = later_stages(record), stretches(record)
    for check in checks:
        try:
            # Numbers of sick runs overflow and divide by zero; that is what they are read for.
            with np.errstate(all="ignore"):
                outcome = check(record)
                for stage, part in stages:
                    if not isinstance(outcome, Finding):
                        outcome = _of_both(outcome, check(part), stage)
                for part in parts:
                    if not proven(outcome) and proven(found := check(part)):
                        outcome = found
        except RecordError:  # no check can judge a record that cannot be read
            raise
        except Exception as error:  # one broken check must not cost the verdict of the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            outcome = NotJudged(check.slug, f"the test itself failed: {fault}", why="check-failed")
            if notes is not None:
                notes.append(f"the test for {check.slug} failed: {fault}")
        outcomes.append(outcome)
    return outcomes


def proven(outcome: Outcome) -> bool:
    return isinstance(outcome, Finding) and (outcome.status, outcome.grade) == (
        "confirmed",
        "exact",
    )


def _of_both(whole: Outcome, part: Outcome, stage: int) -> Outcome:
    """What a later stage shows, or still wants to be asked; else what the whole run showed."""
    if isinstance(part, Finding):
        return part
    if not isinstance(part, NotJudged) or part.wants is None:
        return whole
    asked = of_the_stage(part.wants, stage)
    # The first stage's question comes first; what is not asked by stages was answered for all of them.
    first = isinstance(whole, NotJudged) and whole.wants is not None
    return whole if first or asked == part.wants else replace(part, wants=asked)


@dataclass(frozen=True)
class Wanted:
    """An exam, the causes it would decide, and how much that is worth for its cost."""

    exam: str
    causes: tuple[str, ...]
    worth: float


def wanted(
    outcomes: Iterable[Outcome], *, costs: Mapping[str, float] | None = None
) -> list[Wanted]:
    """The exams that open checks ask for, the one that decides most for its cost first.

    A cause weighs 1 and a tenth for each finding it would explain: roots are worth asking about first; ten times
    that where an exact test can prove it at the first step. What only describes the outcome weighs a fifth.
    """
    asked: dict[str, list[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, NotJudged | Finding) and outcome.wants:
            asked.setdefault(outcome.wants, []).append(outcome.cause)
    listed = [
        Wanted(
            exam,
            tuple(causes),
            sum(map(severity, causes)) / max(FREE, (costs or {}).get(exam, UNKNOWN_COST)),
        )
        for exam, causes in asked.items()
    ]
    return sorted(listed, key=lambda wish: (-wish.worth, wish.exam))


def severity(cause: str) -> float:
    if cause in OUTCOME_ONLY:
        return 0.2
    return (10.0 if cause in URGENT else 1.0) * (1.0 + 0.1 * len(consequences(cause)))


def own_seconds(record: Record) -> float | None:
    """Own time while the script ran; None if not measured."""
    own = record.get("self.seconds")
    if own is None or not len(own):
        return None
    spent = float(np.nansum(own.values)) + float(record.fact("self.listener_seconds", 0.0))
    return round(spent, 3)


def after_seconds(record: Record) -> float | None:
    """Own time between the script's end and the verdict; None if not measured."""
    spent = record.fact("doctor.after_seconds")
    return round(float(spent), 1) if isinstance(spent, int | float) else None


def overhead_percent(record: Record) -> float | None:
    """Own time while the script ran over the script's time without it, in percent; None if not measured."""
    spent = own_seconds(record)
    if spent is None:
        return None
    steps = record.get("time.step")
    ran = record.fact("run.seconds")
    if ran is None and steps is not None:
        ran = spent + float(np.nansum(steps.values))
    if ran is None or float(ran) <= spent:
        return None
    return round(100 * spent / (float(ran) - spent), 3)


def _first_and_last(text: str) -> str:
    """A traceback in one line: what failed, and the error it ended with."""
    lines = text.strip().splitlines() or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1].strip()}"


def find_check(name: str) -> Check:
    """The check of a slug or a code, in any case, with - or _."""
    key = name.strip().lower().replace("_", "-")
    for check in CHECKS:
        if key in (check.slug, check.code.lower()):
            return check
    near = [slug for slug in BY_SLUG if key and (key in slug or slug in key)]
    codes = [check.code for check in CHECKS]
    near = near or difflib.get_close_matches(key, BY_SLUG)
    near = near or difflib.get_close_matches(key.upper(), codes, cutoff=0.75)
    hint = f"; did you mean {', '.join(near)}?" if near else "; `traindoctor causes` lists them"
    raise TraindoctorError(f"there is no cause named {name!r}{hint}", slug="unknown-cause")


def explain(name: str) -> str:
    """The page of a cause, in Markdown: `print(explain("missing-zero-grad"))`."""
    check = find_check(name)
    lines = [f"# {check.slug} ({check.code})", "", f"{check.title}.", "", check.docs.strip()]
    follows = sorted(consequences(check.slug))
    if follows:
        lines += ["", "## What it explains", ", ".join(follows) + "."]
    return "\n".join(lines) + "\n"
