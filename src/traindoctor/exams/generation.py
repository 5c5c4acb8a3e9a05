"""Exam: what the model writes. Half a row is the prompt, the tape writes the rest, greedily and by sampling.

No generate() of the script is called: tokens are put in at the embedding call, scores are read at the loss.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.ends import Ends, find_ends
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.tape import StepTape

MOST_TOKENS = 48
PIECE = 4


@exam_of_tape(name="generation", title="What the model writes, greedily and by sampling", cost=120)
def generation(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """Share of texts that go in circles and entropy of their tokens: greedy, sampled and in the data."""
    require_faithful(tape)
    tape = without_dropout(tape)
    ends = next((e for e in find_ends(tape) if e.causal and e.has_classes), None)
    if ends is None or ends.layout is None:
        raise NotApplicable("not a next-token model")
    axis, rows, places = ends.layout
    length = ends.index.shape[axis]
    if places < length or length < 16:
        raise NotPossible("the rows are too short to generate from")
    begin = max(4, length // 2, length - MOST_TOKENS)
    values: dict[str, Any] = {"tokens": length - begin, "rows": rows, "step": tape.step}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        written = write(tape, ends, begin, temperature)
        values[name] = describe(written[:, begin:].tolist())
    values["data"] = describe(ends.inputs[:, begin:].tolist())
    return values


def write(tape: StepTape, ends: Ends, begin: int, temperature: float) -> Tensor:
    """(B, T): the rows with everything from `begin` on written by the model."""
    assert ends.layout is not None
    axis = ends.layout[0]
    index = ends.inputs.clone()
    generator = torch.Generator().manual_seed(0)
    site = ends.tokens
    assert site.index is not None
    for place in range(begin, index.shape[1]):
        tokens = (index if axis == 1 else index.T).to(site.index.device)
        replayed = replay(tape, indices={site.op: tokens}, want=[ends.loss.logits])
        scores = ends.scores(replayed[ends.loss.logits]).float().cpu()
        last = ends.grid(scores)[:, place - 1]
        if temperature == 0:
            index[:, place] = last.argmax(-1)
        else:
            chance = (last / temperature).softmax(-1)
            index[:, place] = torch.multinomial(chance, 1, generator=generator)[:, 0]
        index.clamp_(max=max(0, site.num_rows - 1) if site.num_rows else None)
    return index


def describe(rows: Sequence[Sequence[int]]) -> dict[str, float]:
    tokens = Counter(token for row in rows for token in row)
    total = tokens.total()
    return {
        "loops": sum(goes_in_circles(row) for row in rows) / max(1, len(rows)),
        "entropy": -sum(n / total * math.log(n / total) for n in tokens.values()),
        "distinct": len({pair for row in rows for pair in pairwise(row)})
        / max(1, sum(len(row) - 1 for row in rows)),
    }


def goes_in_circles(row: Sequence[int]) -> bool:
    """More than half of its pieces of PIECE tokens stood in it before (seq-rep-4 of Welleck et al. 2019)."""
    pieces = [tuple(row[place : place + PIECE]) for place in range(len(row) - PIECE + 1)]
    return len(pieces) > 1 and len(set(pieces)) < len(pieces) / 2
