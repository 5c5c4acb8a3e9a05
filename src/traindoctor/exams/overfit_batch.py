"""Exam: can the model learn one batch by heart? The taped step is trained again and again on copies."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.ends import find_ends
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.sites import LossSite
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.tape import StepTape

STEPS = 80
# Two rates: the better one counts. The exam asks for capacity, not for a schedule.
RATES = (3e-3, 1e-2)
# The whole exam stays below so many seconds; it says how many steps it made.
SECONDS = 10.0
# Near zero: so much of the way to the floor is left.
LEARNED = 0.1
# A loss that fell by less of its start over the last quarter of at least so many steps stands still.
STILL, ENOUGH = 0.01, 40


@exam_of_tape(name="overfit_batch", title="Overfit one batch", cost=300, least=60)
def overfit_batch(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`start` and `end` of the loss; `floor` is what targets that contradict each other leave.

    `learned` where it comes near the floor, `stalled` where it stays above and falls no more.
    """
    require_faithful(tape)
    tape = without_dropout(tape)
    seconds = min(SECONDS, patient.seconds) / len(RATES)
    runs = [losses(tape, rate, seconds) for rate in RATES]
    finite = [run for run in runs if all(map(math.isfinite, run))]
    if not finite:
        raise NotPossible("the loss is not finite at any learning rate")
    best = min(finite, key=lambda run: run[-1])
    numbers = sum(leaf.value.numel() for leaf in tape.parameters.values())
    targets = sum(int(site.valid.sum()) for site in loss_sites(tape))
    floor = contradiction(tape)
    left = (best[-1] - floor) / max(best[0] - floor, 1e-9)
    late = best[-max(2, len(best) // 4) :]
    return {
        "floor": floor,
        "learned": left < LEARNED,
        "stalled": left >= LEARNED and len(best) >= ENOUGH and late[0] - late[-1] < STILL * best[0],
        "start": best[0],
        "end": best[-1],
        "steps": len(best) - 1,
        "losses": best[:: max(1, len(best) // 16)],
        "rate": RATES[runs.index(best)],
        "parameters": numbers,
        "targets": targets,
    }


def contradiction(tape: StepTape) -> float:
    """The least mean loss that any model can reach: entropy of the targets of places that see the same."""
    found = [e for e in find_ends(tape) if e.has_classes]
    ends = (
        found[0] if len(found) == 1 else None
    )  # of two look-ups (a source, a prefix) either may tell
    if ends is None or ends.layout is None:
        sites = [site for site in loss_sites(tape) if site.in_root and site.num_classes > 1]
        return entropy(Counter([0]), sites[0]) if len(sites) == 1 else 0.0
    axis, rows, places = ends.layout
    index = ends.inputs.tolist()
    targets = ends.loss.targets.cpu().tolist()
    valid = ends.loss.valid.cpu().tolist()
    seen: dict[tuple[Any, ...], Counter[int]] = {}
    for number, (target, counts) in enumerate(zip(targets, valid)):
        if not counts:
            continue
        row, place = number, 0
        if places:
            row, place = divmod(number, places) if axis == 1 else divmod(number, rows)[::-1]
        line = tuple(index[row])
        key = line[: place + 1] if ends.causal else (place, *line)
        seen.setdefault(key, Counter())[target] += 1
    total = sum(group.total() for group in seen.values())
    lost = sum(group.total() * entropy(group, ends.loss) for group in seen.values())
    return lost / total if total else 0.0


def entropy(group: Counter[int], site: LossSite) -> float:
    """Of targets that one prediction must serve; label smoothing spreads each of them over all classes."""
    given = site.op.kwargs.get("label_smoothing")
    smoothing = float(given) if isinstance(given, int | float) else 0.0
    rest = smoothing / max(1, site.num_classes)
    shares = [(1 - smoothing) * n / group.total() + rest for n in group.values()]
    spread = -rest * math.log(rest) * (site.num_classes - len(shares)) if rest else 0.0
    return spread - sum(share * math.log(share) for share in shares)


def losses(tape: StepTape, rate: float, seconds: float) -> list[float]:
    """Adam on copies of the parameters; the loss before each step and after the last."""
    values = {name: leaf.value.detach().clone().float() for name, leaf in tape.parameters.items()}
    first = {name: torch.zeros_like(value) for name, value in values.items()}
    second = {name: torch.zeros_like(value) for name, value in values.items()}
    found: list[float] = []
    deadline = time.thread_time() + seconds
    for step in range(1, STEPS + 2):
        given = {n: v.to(tape.parameters[n].value.dtype) for n, v in values.items()}
        replayed = replay(tape, parameters=given, gradients=True)
        found.append(float(replayed.loss.detach()))
        if step > STEPS or not math.isfinite(found[-1]) or time.thread_time() > deadline:
            break
        adam(values, replayed.gradients(), first, second, rate, step)
    return found


def adam(
    values: dict[str, Tensor],
    gradients: Mapping[str, Tensor | None],
    first: dict[str, Tensor],
    second: dict[str, Tensor],
    rate: float,
    step: int,
) -> None:
    for name, gradient in gradients.items():
        if gradient is None or name not in values:
            continue
        g = gradient.detach().float()
        first[name].lerp_(g, 0.1)
        second[name].lerp_(g.square(), 0.01)
        size = (second[name] / (1 - 0.99**step)).sqrt_().add_(1e-8)
        values[name].sub_(first[name] / (1 - 0.9**step) / size, alpha=rate)
