"""Every event of a training run, in one file. Taps make them, probes and the tape recorder read them.

Tensors in an event belong to the user's run: read them at once, keep numbers, never the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(slots=True)
class BatchFetched:
    """A DataLoader gave a batch; `seconds` is the time inside its `__next__`."""

    batch: Any
    seconds: float
    num_batches: int | None = None
    """Batches of one pass over the loader, where it can say."""
    rows: int | None = None
    """Examples that the loader joins, where it says so."""
    examples: Sequence[Any] = ()
    """What the batch was joined of, in the first batches that this process makes itself."""


@dataclass(slots=True)
class ForwardBegin:
    """An outermost module call begins. `wants_grad`: grad mode is on and the module has trainable parameters."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    wants_grad: bool
    training: bool
    grad: bool = True
    """Grad mode alone: a loss module has no parameters."""


@dataclass(slots=True)
class ForwardEnd:
    module: torch.nn.Module
    output: Any
    wants_grad: bool
    seconds: float


@dataclass(slots=True)
class LossCalled:
    """A torch loss function was called: cross_entropy, nll_loss, binary_cross_entropy_with_logits, mse_loss, ..."""

    kind: str
    input: Tensor
    target: Tensor
    output: Tensor
    reduction: str
    ignore_index: int
    weight: Tensor | None
    label_smoothing: float
    wants_grad: bool


@dataclass(slots=True)
class TokensEmbedded:
    """An embedding look-up with an integer index (F.embedding)."""

    index: Tensor
    weight: Tensor
    wants_grad: bool


@dataclass(slots=True)
class BackwardBegin:
    """`first`: the first backward pass after an optimizer step (or of the run). Nested passes make no event."""

    roots: Sequence[Tensor]
    first: bool
    scale: float  # GradScaler's factor inside the root, 1.0 without one
    inputs: Sequence[Tensor] | None = None  # `torch.autograd.grad` was called for these parameters
    gradients: Sequence[Tensor | None] | None = None  # given for roots that are no scalars


@dataclass(slots=True)
class BackwardEnd:
    roots: Sequence[Tensor]
    seconds: float
    inputs: Sequence[Tensor] | None = None
    results: Sequence[Tensor | None] | None = None  # what `torch.autograd.grad` gave for `inputs`


@dataclass(slots=True)
class Clipped:
    """A clip call. `total_norm` is the norm BEFORE clipping (a tensor: do not wait for the device)."""

    kind: Literal["norm", "value"]
    parameters: Sequence[Tensor]
    limit: float
    total_norm: Tensor | None


@dataclass(slots=True)
class Unscaled:
    optimizer: torch.optim.Optimizer


@dataclass(slots=True)
class ScalerUpdated:
    scale: float
    skipped: bool


@dataclass(slots=True)
class GradsCleared:
    """`owner` is the optimizer or the module whose zero_grad was called."""

    owner: Any


@dataclass(slots=True)
class StepBegin:
    """All gradients of the step are in `.grad` (a closure has already run).

    Optimizers that step one after the other without a backward pass between share one step.
    """

    optimizer: torch.optim.Optimizer
    step: int
    left_behind: bool = False
    """No optimizer finds gradients in its parameters any more: the script trains another model."""
    given_rates: Sequence[float] = ()
    """The rates that its groups were made with, where we were there."""


@dataclass(slots=True)
class StepEnd:
    optimizer: torch.optim.Optimizer
    step: int
    seconds: float
    inside: Sequence[tuple[torch.optim.Optimizer, Sequence[float]]] = ()
    """Optimizers that it stepped itself, with the rates they used."""


@dataclass(slots=True)
class RateScheduled:
    scheduler: Any
    rates: Sequence[float]
    missed: int = 0
    """Its steps since the last event that were not heard."""


@dataclass(slots=True)
class ScalarRead:
    """The script read a scalar tensor: item(), float(), format."""

    tensor: Tensor
    value: float


@dataclass(slots=True)
class WeightsLoaded:
    """`module.load_state_dict(given)` has come back: the names that the module missed, and those it did not expect."""

    module: torch.nn.Module
    given: dict[str, Any]
    missing: frozenset[str]
    unexpected: frozenset[str]
    line: str | None = None
    """The script's call, where some are missing and others unexpected."""

    @property
    def amiss(self) -> bool:
        """Some may be the same under two names."""
        return bool(self.missing and self.unexpected)


@dataclass(slots=True)
class RunEnded:
    status: int | str


Event = (
    BatchFetched
    | ForwardBegin
    | ForwardEnd
    | LossCalled
    | TokensEmbedded
    | BackwardBegin
    | BackwardEnd
    | Clipped
    | Unscaled
    | ScalerUpdated
    | GradsCleared
    | StepBegin
    | StepEnd
    | RateScheduled
    | ScalarRead
    | WeightsLoaded
    | RunEnded
)
