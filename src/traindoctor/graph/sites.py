"""What a site is: where data enters the model, where predictions meet targets.

`loss_sites.py` and `input_sites.py` find them on a tape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from traindoctor.tape.ops import Op, Ref

SiteKind = Literal["data", "position", "constant", "continuous"]


@dataclass(eq=False)
class LossSite:
    """One place where predictions meet targets. `rows(value of logits)` has one row per target."""

    op: Op
    kind: str
    logits: Ref
    targets: Tensor
    """(N,) classes; for losses on numbers the targets as they are, flattened."""
    valid: Tensor
    """(N,) which targets count."""
    reduction: str
    line: str | None
    class_dim: int | None
    num_classes: int
    from_data: bool
    """False: the targets were made by the script (a contrastive loss's diagonal)."""
    in_root: bool
    """The site is on the way to what backward was called on."""

    def rows(self, logits: Tensor) -> Tensor:
        """(N, C); activations of any width where a head stands between them and the loss."""
        if self.class_dim is None:
            return logits.reshape(-1, 1)
        moved = logits.movedim(self.class_dim, -1)
        return moved.reshape(-1, moved.shape[-1])


@dataclass(eq=False)
class InputSite:
    """Where tokens (or numbers) meet the first parameter."""

    op: Op
    index: Tensor | None
    """The integer index; None for continuous inputs."""
    weight: str | None
    """The table's parameter; None when it is frozen."""
    kind: SiteKind
    ref: Ref | None = None
    """What was looked up, or the continuous input itself."""
    num_rows: int = 0
    """Rows of the table."""


def valid_count(site: LossSite) -> int:
    return int(site.valid.sum())


def by_line(
    sites: list[LossSite], key: Callable[[LossSite], Any] | None = None
) -> dict[Any, list[LossSite]]:
    """Calls of one place in the script together: micro-batches, ranks of a loop."""
    groups: dict[Any, list[LossSite]] = {}
    for site in sites:
        chosen = key(site) if key else (site.line, site.op.package_line, site.kind)
        groups.setdefault(chosen, []).append(site)
    return groups
