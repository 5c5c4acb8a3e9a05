"""Which tensors does the script keep? A census of those that are alive, by shape, and of the longest graph behind one."""

import gc
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from traindoctor.exams.base import exam
from traindoctor.experiment.patient import Patient
from traindoctor.ground.graph_walk import MOST_NODES, nodes_behind

# Shapes that are told of, by the bytes they hold.
MOST_SHAPES = 8
CONTAINERS = (dict, list, tuple, set, frozenset, deque)
# Where the classes of our own objects stand.
OURS = tuple(f"traindoctor.{part}." for part in ("ground", "tape", "graph", "experiment"))


@exam(name="kept_tensors", title="Tensors that the script keeps", cost=4, needs_tape=False)
def kept_tensors(patient: Patient) -> Mapping[str, Any]:
    """`shapes`: per shape and dtype the number and the bytes of tensors alive, ours and the model's not among them;
    `graph_nodes` of the longest graph that one of them holds, beside `step_ops` of a step."""
    own = {id(t) for t in held_by_us(patient)} | {id(t) for t in of_the_model(patient)}
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    memory: set[int] = set()
    longest = 0
    for tensor in alive():
        if id(tensor) in own:
            continue
        if tensor.grad_fn is not None and longest < MOST_NODES:
            longest = max(longest, len(nodes_behind([tensor])))
        nbytes = fresh_bytes(tensor, memory)
        if nbytes:
            key = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            group = groups.setdefault(key, {"number": 0, "bytes": 0})
            group["number"] += 1
            group["bytes"] += nbytes
    largest = sorted(groups.items(), key=lambda item: item[1]["bytes"], reverse=True)[:MOST_SHAPES]
    tape = patient.first_tape
    return {
        "shapes": [{"shape": list(s), "dtype": d, **group} for (s, d), group in largest],
        "graph_nodes": longest,
        "step_ops": len(tape.ops) if tape is not None else None,
        "steps": patient.current_step,
    }


def alive() -> list[Tensor]:
    """By type, not by isinstance: proxies among the objects of a program may answer for what they stand for."""
    return [o for o in gc.get_objects() if issubclass(type(o), Tensor)]


def fresh_bytes(tensor: Tensor, memory: set[int]) -> int:
    """Bytes of memory that no tensor before it shares."""
    try:
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return 0  # sparse, or no memory of its own
    if not place or place in memory:
        return 0
    memory.add(place)
    return int(size)


def of_the_model(patient: Patient) -> Iterator[Tensor]:
    for _, parameter in patient.names.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def held_by_us(patient: Patient) -> Iterator[Tensor]:
    """Through containers and our own objects, each once; never into the script's."""
    waiting: list[Any] = [patient]
    seen: dict[int, Any] = {}
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            yield value
        elif id(value) in seen:
            continue
        elif isinstance(value, CONTAINERS):
            seen[id(value)] = value
            waiting += value.values() if isinstance(value, dict) else value
        elif type(value).__module__.startswith(OURS):
            seen[id(value)] = value
            waiting += vars(value).values() if hasattr(value, "__dict__") else ()
