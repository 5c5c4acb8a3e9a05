"""A grid of patches with a code for each cell, for tests of what tells places apart.

Legend: B images, N cells along a side, T = N * N places, D features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from patients import tape_steps
from torch import Tensor, nn

from traindoctor.experiment.patient import Patient

B, N, D = 6, 4, 16
T = N * N
CELL = torch.arange(T)
ROW, COLUMN = CELL // N, CELL % N


def waves(place: Tensor, width: int) -> Tensor:
    angle = place[:, None].float() * 10.0 ** -torch.arange(width // 2)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Grid(nn.Module):
    """Patches, a code, one attention written by hand, a mean, a class. Or, without the mean, something of each place."""

    def __init__(
        self, code: Callable[[nn.Module, Tensor], Tensor], dense: bool = False, **tables: Tensor
    ) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(9, D), nn.Linear(D, 3 * D), nn.Linear(D, 5)
        self.code, self.dense = code, dense
        for name, table in tables.items():
            self.register_parameter(name, nn.Parameter(table))

    def forward(self, patches: Tensor) -> Tensor:
        h = self.code(self, self.embed(patches))
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        weights = (torch.einsum("bid,bjd->bij", q, k) / D**0.5).softmax(-1)
        h = h + torch.einsum("bij,bjd->bid", weights, v)
        return self.head(h if self.dense else h.mean(1))


def examined(
    code: Callable[[nn.Module, Tensor], Tensor], dense: bool = False, **tables: Tensor
) -> Patient:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if dense:
            return F.mse_loss(model(batch[0]), batch[0][..., :5].roll(1, 1))
        return F.cross_entropy(model(batch[0]), batch[1])

    def batch(_: int) -> tuple[Tensor, Tensor]:
        return torch.randn(B, T, 9), torch.randint(5, (B,))

    torch.manual_seed(0)
    return tape_steps(Grid(code, dense, **tables), loss, batch)
