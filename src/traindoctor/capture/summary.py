"""What was seen of a run, in a few lines of plain text. It judges nothing."""

from __future__ import annotations

from pathlib import Path

from traindoctor.record import Record, Series, open_record


def summary(folder: Path) -> str:
    """The lines; they also say plainly when nothing was trained."""
    if not list(folder.glob("record-*.sqlite")):
        return (
            "traindoctor: the script called no backward pass and no optimizer step: nothing was trained, "
            "nothing recorded"
        )
    record = open_record(folder)
    lines = [f"traindoctor: {_counts(record)}, recorded in {folder}"]
    if len(record.ranks) > 1:
        lines.append(f"  ranks    {len(record.ranks)}")
    for label, name in (
        ("loss", "loss.root"),
        ("gradient", "grad.norm"),
        ("rate", "optim.lr"),
        ("step", "time.step"),
    ):
        series = record.get(name)
        if series is not None and len(series):
            lines.append(f"  {label:<8} {_course(series)}")
    share = record.fact("self.share")
    if share is not None:
        lines.append(f"  own cost {100 * float(share):.2f} % of the run's time")
    faults = [note for note in record.notes if note.level == "fault"]
    if faults:
        first = faults[0].text.strip().splitlines()
        lines.append(f"  {len(faults)} fault(s) of our own: {first[0]} {first[-1]}")
    return "\n".join(lines)


def _counts(record: Record) -> str:
    steps, backwards = record.fact("run.steps"), record.fact("run.backwards")
    if steps is None:
        return f"{record.num_steps} steps"
    return f"{steps} optimizer steps, {backwards} backward passes"


def _course(series: Series) -> str:
    values = series.values
    return f"{values[0]:.6g} at first, {values[-1]:.6g} at last"
