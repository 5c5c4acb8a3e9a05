"""The verdict as Markdown: for an issue, a pull request or a lab book."""

from traindoctor.checks.base import Evidence
from traindoctor.diagnosis import Cause, Diagnosis
from traindoctor.report.words import by_reason, by_test, number, place


def report(diagnosis: Diagnosis) -> str:
    lines = [f"# Verdict: {diagnosis.verdict}", "", f"{diagnosis.reason}.", ""]
    if diagnosis.decides:
        lines += [f"What would decide: `{diagnosis.decides}`", ""]
    lines += [f"{diagnosis.steps} optimizer steps were seen."]
    if diagnosis.overhead_percent is not None:
        lines[-1] += f" Watching cost {number(diagnosis.overhead_percent)} % of the run."
    for cause in diagnosis.causes:
        lines += ["", *_cause(cause)]
    if diagnosis.symptoms:
        lines += ["", "## Symptoms", ""]
        lines += [f"- {symptom.summary}" for symptom in diagnosis.symptoms]
    if diagnosis.advice:
        lines += ["", "## Slow", ""]
        lines += [f"- {one.cause}: {one.summary}. {one.remedy}" for one in diagnosis.advice]
    if diagnosis.ruled_out:
        lines += ["", "## Passed", "", "| by | causes |", "| --- | --- |"]
        lines += [f"| {_cell(by)} | {', '.join(n)} |" for by, n in by_test(diagnosis.ruled_out)]
    if diagnosis.not_judged:
        lines += ["", "## Not tested", "", "| why | causes |", "| --- | --- |"]
        lines += [f"| {_cell(w)} | {', '.join(n)} |" for w, n in by_reason(diagnosis.not_judged)]
    if diagnosis.not_applicable:
        lines += ["", "## Does not apply", "", "| why | causes |", "| --- | --- |"]
        groups = by_reason(diagnosis.not_applicable)
        lines += [f"| {_cell(why)} | {', '.join(names)} |" for why, names in groups]
    if diagnosis.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in diagnosis.notes)]
    return "\n".join(lines) + "\n"


def _cause(cause: Cause) -> list[str]:
    found = cause.finding
    lines = [f"## {found.cause} ({found.status}, confidence {found.confidence:.2f})", ""]
    lines += [f"{found.summary.rstrip('.')}.", ""]
    facts = [("Since step", found.since_step), ("Where", place(found))]
    lines += [f"- {name}: {value}" for name, value in facts if value is not None]
    if found.law:
        lines.append(f"- Broken law: {found.law}")
    if found.undecided:
        lines.append(f"- Not proven: {found.undecided}")
    if cause.explained_by:
        lines.append(f"- Follows from: {', '.join(cause.explained_by)}")
    if cause.consequences:
        lines.append(f"- Explains: {', '.join(cause.consequences)}")
    lines.append(f"- What to change: {found.remedy}")
    if found.evidence:
        lines += [
            "",
            "| measure | value | expected | noise | step |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [_row(item) for item in found.evidence]
    return lines


def _row(item: Evidence) -> str:
    cells = (item.measure, number(item.value), number(item.expected), number(item.noise))
    step = "-" if item.step is None else str(item.step)
    return f"| {' | '.join(map(_cell, cells))} | {step} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
