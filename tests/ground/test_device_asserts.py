"""What a GPU would answer with an assertion is refused before it is called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.ground.device_asserts import refuse_hidden_state, refuse_what_would_assert

x = torch.randn(4, 5)


def index(*values: int) -> Tensor:
    return torch.tensor(values)


RIGHT: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("embedding", (index(0, 3), x), {}),
    ("gather", (x, 1, index(0, 4).expand(4, 2)), {}),
    ("index_select", (x, 0, index(3)), {}),
    ("scatter_", (x.clone(), 1, index(4).expand(4, 1), 1.0), {}),
    ("cross_entropy", (x, index(0, 4, -100, 2)), {}),
    ("cross_entropy", (x, index(0, 4, 7, 2)), {"ignore_index": 7}),
    ("masked_scatter", (x, x > 0, torch.ones(20)), {}),
    ("__getitem__", (x, (slice(None), index(-5, 4))), {}),
    ("__getitem__", (x, x > 0), {}),
    ("multinomial", (x.abs(), 2), {}),
    ("add", (x, x), {}),
]
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("embedding", (index(0, 4), x), {}),
    ("embedding", (index(-1), x), {}),
    ("gather", (x, 1, index(5).expand(4, 1)), {}),
    ("index_select", (x, 0, index(4)), {}),
    ("scatter_", (x.clone(), 1, index(5).expand(4, 1), 1.0), {}),
    ("cross_entropy", (x, index(0, 5, 1, 2)), {}),
    ("masked_scatter", (x, torch.ones(4, 5, dtype=torch.bool), torch.ones(19)), {}),
    ("__getitem__", (x, (slice(None), index(5))), {}),
    ("__getitem__", (x, index(-5)), {}),
    ("multinomial", (x.abs() * torch.nan, 2), {}),
]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), RIGHT, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_torch_takes_is_let_through(name: str, args: Any, kwargs: Any) -> None:
    refuse_what_would_assert(name, args, kwargs)
    function = getattr(F, name, None) or getattr(torch, name, None) or getattr(Tensor, name)
    function(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"), WRONG, ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_torch_does_not_take_is_refused(name: str, args: Any, kwargs: Any) -> None:
    function = getattr(F, name, None) or getattr(torch, name, None) or getattr(Tensor, name)
    with pytest.raises((IndexError, RuntimeError)):
        function(*args, **kwargs)
    with pytest.raises(ReplayError, match="outside its valid range"):
        refuse_what_would_assert(name, args, kwargs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recurrent_dropout_on_a_gpu_is_not_replayed() -> None:
    layer = torch.nn.LSTM(4, 4, 2, dropout=0.5).cuda()
    data = torch.randn(3, 2, 4, device="cuda")
    zeros = torch.zeros(2, 2, 4, device="cuda")
    args = (data, (zeros, zeros), layer._flat_weights, True, 2, 0.5, True, False, False)
    with pytest.raises(ReplayError, match="keeps its own random state"):
        refuse_hidden_state("lstm", args)
    refuse_hidden_state("lstm", (*args[:5], 0.0, *args[6:]))
