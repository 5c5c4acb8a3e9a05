"""What a probe is: it turns events into numbers, cheaply, and never judges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from traindoctor.events import Event
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from torch import Tensor

    from traindoctor.ground.names import Names

Cost = Literal["free", "cheap", "costly"]

# The order of labels and of numbers is asked for again at these batches, as rows come in: early enough to be of use,
# often enough to be sure; against so many random deals of at most so many rows.
ASKED_AT = (12, 25, 50, 100, 200, 400, 800)
DEALS = 60
MOST_ROWS = 6000


class Probe(Protocol):
    """One measurement. It draws no random number, writes no parameter, keeps no tensor of the run alive.

    `free` probes run at every step; the governor decides how often the others are `due`. A probe is made
    without arguments. Some attributes may be there besides: `hears`, the event types it wants (all, if it does
    not say); `names`, which is set to the Names of the run before the first event; `opened()`, called when all
    of our work after a step is done and the next one begins; `finish(record)`, called once when the run ends;
    `seconds_inside`, what the step's measurement cost inside the script's own calls: part of its price.
    """

    name: ClassVar[str]
    cost: ClassVar[Cost]
    every: ClassVar[int]
    """How often it would like to run, in steps."""

    def on(self, event: Event, *, due: bool) -> None:
        """An event of the run; `due` says whether this step may be measured."""

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        """The step has ended: write its numbers."""


def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """The entries that were measured."""
    return {name: float(value) for name, value in values.items() if value is not None}


def parameters_of(names: Names) -> list[tuple[str, Tensor]]:
    """Every trainable parameter of the run that still exists, by name, in a fixed order."""
    return [(name, p) for name, p in names.parameters() if p.requires_grad]


class Later:
    """Numbers on their way from the device: asked for now, written when they have arrived.

    On the CPU they are there at once. On CUDA the copy is asynchronous, and nobody waits for it before
    `PATIENCE` steps have gone by.
    """

    PATIENCE: ClassVar[int] = 8

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Tensor, Any, Callable[[Tensor], None]]] = deque()

    def put(self, step: int, numbers: Tensor, write: Callable[[Tensor], None]) -> None:
        """`write` gets the numbers as float64 on the host."""
        import torch

        numbers = numbers.detach()
        if not numbers.is_cuda:
            write(numbers.double().cpu())
            return
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._waiting.append((step, host, arrived, write))

    def collect(self, step: int | None = None) -> None:
        """Writes what has arrived; without a step (the run ends) waits for all of it."""
        while self._waiting:
            asked, host, arrived, write = self._waiting[0]
            if step is not None and step - asked < self.PATIENCE and not arrived.query():
                return
            arrived.synchronize()
            self._waiting.popleft()
            write(host.double())
