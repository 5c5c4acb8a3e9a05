import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from traindoctor.checks.base import Evidence, Outcome, check, evidence
from traindoctor.record import Record

# Graphs of forward passes that outlived 8 steps. One leaking run had 24 of them at step 60; in 75 others there
# was not one.
OLD_GRAPHS = 4
# Windows in which the number must still rise: validation lists and rollouts rise, then fall.
WINDOWS = 3
# Bytes without graphs: so much of the memory per step, over so many steps, without slowing down. Measured: a
# leak grows by 0.6 % of its memory per step and keeps 0.97 of its pace; buffers that level off keep 0.6.
BYTES_SHARE, BYTES_STEPS, BYTES_PACE = 0.001, 50, 0.8
# ... and by a quarter in all: allocators, late workspaces and our own replays grow a healthy run by up to 8 %.
BYTES_GROWTH = 0.25
# At a falling pace it may be our own tapes and snapshots of the first steps: the tensors that are alive are counted, and
# without one a step there is no leak. A cache that kept every answer of a teacher kept 0.65 of its pace.
ASKED_PACE = 0.3
# Tensors of one shape, in so many of the steps one, that make up this share of the growth.
A_STEP, EXPLAINED = 0.5, 0.5
# A graph that one tensor holds, over the operations of a step: about 1 in a sound run, which keeps its last loss.
GRAPHS_LONG = 4.0

# What is measured, in the order in which it is looked at.
MEMORY = {"memory.cuda": "GPU memory", "memory.rss": "memory of the process"}


@check(
    code="SPD004",
    slug="memory-leak",
    title="Memory grows from step to step",
    needs=["graphs.old"],
    min_steps=12,
    undecided="the tensors may be kept alive on purpose",
    costs_only_time=True,
)
def memory_leak(record: Record) -> Outcome:
    """
    ## What it does
    Counts the autograd graphs of earlier forward passes that are still alive, by an object placed in each
    graph that dies with it. Memory alone proves little: it grows in every run. Where it grows steadily, the tensors
    that are alive are counted: one more a step that makes up the growth, or a graph through many steps, is a leak.
    ## Why it matters
    Each kept graph holds the activations of its step: the run slows down and ends out of memory.
    ## How to fix
    Something keeps a tensor with its history: `total += loss`, a list of losses or outputs, a hidden state
    carried on. Take the number (`loss.item()`) or cut the history (`tensor.detach()`).
    ## When it stays silent
    Graphs that are held for a while and then let go, caches that level off, a retained graph of one step.
    """
    old = record["graphs.old"]
    windows = [int(part.max()) for part in np.array_split(old.values, WINDOWS) if len(part)]
    rising = all(a < b for a, b in itertools.pairwise(windows)) and old.values[-1] >= windows[-1]
    if old.values[-1] >= OLD_GRAPHS and rising:
        growth = bytes_per_step(record)
        since = int(old.steps[np.argmax(old.values > 0)])
        return memory_leak.finding(
            evidence(
                "autograd graphs alive after more than 8 steps", int(old.values[-1]), 0, step=since
            ),
            *([evidence("memory growth in bytes per step", growth)] if growth else []),
            summary=(
                f"{int(old.values[-1])} autograd graphs of past steps are kept alive, and their "
                "number keeps rising"
            ),
            since_step=since,
            grade="exact",
        )
    return bytes_alone(record) or memory_leak.clear("no graphs of past steps pile up")


def bytes_per_step(record: Record) -> float | None:
    rss = record.get("memory.rss")
    if rss is None or len(rss) < WINDOWS:
        return None
    half = len(rss) // 2
    return float(np.median(np.diff(rss.values[half:]))) or float(
        (rss.values[-1] - rss.values[half]) / max(1, len(rss) - 1 - half)
    )


def bytes_alone(record: Record) -> Outcome | None:
    """Tensors kept without a graph: at most possible."""
    for name in MEMORY:
        memory = record.get(name)
        if memory is None or len(memory) < BYTES_STEPS:
            continue
        # The first steps allocate the optimizer's state and the workspaces.
        late = memory.tail(len(memory) - len(memory) // 4)
        parts = [np.array_split(column, 2) for column in (late.steps, late.values)]
        slopes = [float(np.polyfit(steps, values, 1)[0]) for steps, values in zip(*parts)]
        share = slopes[1] / max(1.0, float(parts[1][1].mean()))
        grown = late.last > (1 + BYTES_GROWTH) * late.first
        steady = slopes[0] > 0 and slopes[1] >= BYTES_PACE * slopes[0]
        asked = slopes[0] > 0 and slopes[1] >= ASKED_PACE * slopes[0]
        if grown and asked and share > BYTES_SHARE:
            growth = evidence(f"growth of the {MEMORY[name]} per step, in bytes", slopes[1], 0.0)
            census = record.exam("kept_tensors")
            if census is not None and census.done:
                found = kept(census.values, slopes[1])
                if found is not None:
                    return memory_leak.finding(found[0], growth, summary=found[1], grade="exact")
            if not steady and census is None:
                return memory_leak.not_judged(
                    "memory grows, and live tensors were not counted", wants="kept_tensors"
                )
            if not steady:
                continue
            return memory_leak.finding(
                growth,
                grade="curve",
                summary=f"the {MEMORY[name]} grows by {slopes[1] / 2**20:.1f} MiB per step and does not slow down",
                wants="kept_tensors",
            )
    return None


def kept(census: Mapping[str, Any], per_step: float) -> tuple[Evidence, str] | None:
    """What the script holds on to: a tensor a step that makes up the growth, or a graph through many steps."""
    steps, nodes, ops = census["steps"], census["graph_nodes"], census["step_ops"]
    if ops and nodes > GRAPHS_LONG * ops and nodes > steps:
        return (
            evidence("nodes of the longest live autograd graph", nodes, f"about {ops} a step"),
            (
                "a tensor is kept alive whose autograd graph reaches back through many steps: "
                f"{nodes} nodes, while one step has {ops} operations"
            ),
        )
    for group in census["shapes"]:
        each = group["bytes"] / max(1, group["number"])
        if group["number"] >= A_STEP * steps and group["bytes"] >= EXPLAINED * per_step * steps:
            shape = tuple(group["shape"])
            return (
                evidence(f"live tensors of shape {shape}", group["number"], "a few"),
                f"{group['number']} tensors of shape {shape} are kept alive after {steps} steps, {each / 2**20:.1f} "
                "MiB each: that is what memory grows by",
            )
    return None
