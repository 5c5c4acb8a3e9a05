"""What was measured of each stage: the steps that one optimizer makes, by one loss.

A script may train by several optimizers, in turn (two networks against each other) or one after the other (fine-tuning
after training). What was proven of the steps of the first says nothing of those of another. Exams of one taped step are
therefore made for every stage; the name of such an exam says which: `loss_input` of the first, `loss_input@1` of the next.
"""

from __future__ import annotations

from dataclasses import replace

from traindoctor.record.schema import Record

# Exams of one taped step, of what the model and the loss are.
BY_STAGE = frozenset(
    "tape_gradient functions_alone gradient_flow loss_input loss_coefficient printed_loss shift dependence positions place_codes "
    "softmax_axis residual normalisation padding sharing".split()
)
MARK = "@"


def of_the_stage(exam: str, stage: int) -> str:
    """The exam's name where it is made on the steps of that stage."""
    return f"{exam}{MARK}{stage}" if stage and exam in BY_STAGE else exam


def exam_and_stage(name: str) -> tuple[str, int]:
    exam, _, stage = name.partition(MARK)
    return exam, int(stage) if stage.isdecimal() else 0


def later_stages(record: Record) -> list[tuple[int, Record]]:
    """Each stage but the first that was taped, and the record as if the run had no other."""
    return [(int(stage), _only(record, int(stage))) for stage in record.fact("stages.taped") or ()]


def _only(record: Record, stage: int) -> Record:
    named = [(*exam_and_stage(result.exam), result) for result in record.exam_results]
    return Record(
        series={name: record[name] for name in record.names},
        layers={n: table for n in record.layer_names if (table := record.layers(n)) is not None},
        facts=record.facts,
        exams=[
            replace(result, exam=exam)
            for exam, of, result in named
            if exam not in BY_STAGE or of == stage
        ],
        notes=record.notes,
        meta=record.meta,
    )
