"""The transformer: shapes, start, causality, the cache against the plain forward pass."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.loss import next_token_loss
from traindoctor.lm.model import (
    Attention,
    Cache,
    FeedForward,
    Transformer,
    decay_groups,
    rotary_table,
    rotate,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "grouped": {"kv_heads": 2},
    "gpt2": {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True},
    "untied": {"tied": False, "init": "xavier"},
    "mixed": {"norm": "layer", "positions": "rotary", "mlp": "gelu-tanh"},
}
V = 50


def make(name: str, **changes: Any) -> Transformer:
    torch.manual_seed(0)
    shape = {"layers": 2, "heads": 4, "width": 32, "block": 16}
    return Transformer(ModelConfig(**{**shape, **VARIANTS[name], **changes}), V)


@pytest.mark.parametrize("name", VARIANTS)
def test_counts_its_parameters_without_being_built(name: str) -> None:
    model = make(name)
    assert sum(p.numel() for p in model.parameters()) == model.config.num_parameters(V)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("width", [32, 512])
def test_first_loss_is_near_ln_v(name: str, width: int) -> None:
    model = make(name, width=width)
    tokens = torch.randint(V, (8, 17))
    loss = model(tokens[:, :-1], tokens[:, 1:]).item()
    # Xavier's logits are wider by design.
    assert loss == pytest.approx(math.log(V), abs=0.25 if name != "untied" else 1.0)


@pytest.mark.parametrize("name", VARIANTS)
def test_no_token_sees_the_future(name: str) -> None:
    model = make(name).eval()
    tokens = torch.randint(V, (2, 16))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % V
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert (difference[:9] == 0).all()
    assert (difference[9:] > 0).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_cache_gives_the_logits_of_the_plain_pass(name: str) -> None:
    model = make(name).double().eval()
    tokens = torch.randint(V, (3, 16))
    cache = Cache(model, 3, 16, torch.float64)
    with torch.no_grad():
        expected = model(tokens)
        torch.testing.assert_close(model.prefill(tokens[:, :5], cache), expected[:, 4])
        for t in range(5, 10):
            torch.testing.assert_close(model.decode(tokens[:, t : t + 1], t, cache), expected[:, t])
        for t in range(10, 16):
            where = torch.tensor([t])
            logits = model.decode_static(tokens[:, t : t + 1], where, cache, 16)
            torch.testing.assert_close(logits, expected[:, t])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_checkpointing_changes_memory_not_numbers(name: str) -> None:
    tokens = torch.randint(V, (2, 17))
    grads = []
    for checkpointing in (False, True):
        model = make(name, checkpointing=checkpointing)
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 15), st.integers(0, 15), st.integers(0, 15))
def test_rotation_depends_on_distance_alone(size: int, at: int, distance: int) -> None:
    config = ModelConfig(heads=1, width=2 * size, block=40)
    cos, sin = (part.double() for part in rotary_table(config))
    generator = torch.Generator().manual_seed(size)
    q, k = torch.randn(2, 1, 1, 1, 2 * size, generator=generator, dtype=torch.float64)

    def score(i: int, j: int) -> torch.Tensor:
        return (
            rotate(q, cos[i : i + 1], sin[i : i + 1]) * rotate(k, cos[j : j + 1], sin[j : j + 1])
        ).sum()

    torch.testing.assert_close(score(at + distance, at), score(distance, 0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_loss_is_that_of_pytorch_in_float64(fused: bool) -> None:
    hidden = torch.randn(2, 5, 8, dtype=torch.float64)
    weight = torch.randn(V, 8, dtype=torch.float64)
    targets = torch.randint(V, (2, 5))
    expected = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(
        next_token_loss(hidden, weight, targets, fused=fused).double(),
        expected,
        rtol=1e-6,
        atol=1e-6,
    )


def test_only_matrices_decay() -> None:
    model = make("gpt2")
    decayed, free = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert all(p.dim() < 2 for p in free["params"])
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


def test_dropout_rests_in_evaluation() -> None:
    model = make("llama", dropout=0.5)
    tokens = torch.randint(V, (2, 16))
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize(("mlp", "approximate"), [("gelu", "none"), ("gelu-tanh", "tanh")])
def test_gelu_is_exact_unless_the_approximation_is_asked_for(mlp: Any, approximate: str) -> None:
    part = FeedForward(ModelConfig(width=32, mlp=mlp))
    x = torch.randn(64, 32)
    assert torch.equal(part(x), part.down(F.gelu(part.up(x), approximate=approximate)))


class Copies(TorchDispatchMode):
    """Sizes of all tensors that are copied while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_):
            self.sizes.append(out.numel())
        return out


@pytest.mark.parametrize("kv_heads", [0, 2])
def test_queries_keys_and_values_are_not_copied_for_attention(kv_heads: int) -> None:
    attention = Attention(ModelConfig(heads=4, kv_heads=kv_heads, width=32))
    x = torch.randn(2, 16, 32, requires_grad=True)
    with Copies() as copies:
        attention(x, None).sum().backward()
    assert all(size < x.numel() for size in copies.sizes)
