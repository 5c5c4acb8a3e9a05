"""What was measured of each stage: the steps that one optimizer makes, by one loss.

A script may train by several optimizers, in turn (two networks against each other) or one after the other (fine-tuning
after training). What was proven of the steps of the first says nothing of those of another. Exams of one taped step are
therefore made for every stage; the name of such an exam says which: `loss_input` of the first, `loss_input@1` of the next.
What is measured at every step is cut where a new optimizer begins: a median over both sides is that of neither.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traindoctor.record.schema import Record

# Exams of one taped step, of what the model and the loss are.
BY_STAGE = frozenset(
    "tape_gradient functions_alone gradient_flow loss_input loss_coefficient printed_loss shift dependence rows_apart "
    "pairing example_order positions place_codes numbers_seen softmax_axis residual normalisation padding sharing".split()
)
MARK = "@"
# Shorter stretches are no stage of their own; an optimizer that is made anew all the time begins none.
LEAST_STEPS, MOST_STRETCHES = 30, 4


def of_the_stage(exam: str, stage: int) -> str:
    """The exam's name where it is made on the steps of that stage."""
    return f"{exam}{MARK}{stage}" if stage and exam in BY_STAGE else exam


def exam_and_stage(name: str) -> tuple[str, int]:
    exam, _, stage = name.partition(MARK)
    return exam, int(stage) if stage.isdecimal() else 0


def later_stages(record: Record) -> list[tuple[int, Record]]:
    """Each stage but the first that was taped, and the record as if the run had no other."""
    return [(int(stage), _only(record, int(stage))) for stage in record.fact("stages.taped") or ()]


def stretches(record: Record) -> list[Record]:
    """What was measured from one new optimizer to the next, without any exam; none where there is but one."""
    begun = record.get("optim.objects")
    begins = [] if begun is None else [int(step) for step in begun.steps]
    if not 2 <= len(begins) <= MOST_STRETCHES:
        return []
    ends = [*begins[1:], record.num_steps]
    return [
        _between(record, begin, end)
        for begin, end in zip(begins, ends)
        if end - begin >= LEAST_STEPS
    ]


def _between(record: Record, begin: int, end: int) -> Record:
    series = {name: record[name] for name in record.names}
    layers = {name: record.layers(name) for name in record.layer_names}

    def inside(steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (steps >= begin) & (steps < end)

    return Record(
        series={name: one.take(inside(one.steps)) for name, one in series.items()},
        layers={
            name: table.take(inside(table.steps))
            for name, table in layers.items()
            if table is not None
        },
        facts=record.facts,
        notes=record.notes,
        meta=record.meta,
    )


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
