"""What a command prints when a run has been judged: the verdict, what to do next, where the record lies."""

from pathlib import Path
from typing import IO

from traindoctor.diagnosis import Diagnosis
from traindoctor.record import Record
from traindoctor.record.runs import earlier_run
from traindoctor.record.stored_ranks import record_files
from traindoctor.report import next_steps, terminal


def print_nothing(diagnosis: Diagnosis, stream: IO[str]) -> None:
    """Of a run without a single step there is nothing to list."""
    width = terminal.width_of(stream)
    lines = ["traindoctor: INCONCLUSIVE [0 steps]", *terminal.field("why", diagnosis.reason, width)]
    stream.write("\n".join([*lines, *terminal.field("recorded", "nothing", width)]) + "\n")
    again = (diagnosis.reproduce,) if diagnosis.reproduce else ()
    stream.write(next_steps.text(again, width))


def print_verdict(diagnosis: Diagnosis, record: Record, stream: IO[str], run: Path) -> None:
    """`run`: the folder of the record, or the log that it was read from."""
    imported = record.fact("imported") is not None
    a_record = run.suffix == ".sqlite" or (run.is_dir() and bool(record_files(run)))
    terminal.show(diagnosis, stream, record)
    commands = next_steps.next_steps(
        diagnosis,
        run,
        earlier=None if imported or not run.is_dir() else earlier_run(run),
        more=() if a_record else (f"traindoctor import {next_steps.shown(run)}",),
    )
    stream.write(next_steps.text(commands, terminal.width_of(stream)))
