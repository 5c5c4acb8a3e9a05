"""What is said before the first step, against what the first step then needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.estimate import (
    activation_bytes,
    bf16_pays,
    human_bytes,
    out_of_memory,
    peak_bytes,
    size_warning,
)
from traindoctor.lm.model import Transformer


def kept_for_backward(config: ModelConfig, vocab_size: int, rows: int) -> int:
    """Bytes of the distinct tensors that autograd keeps, parameters left out."""
    model = Transformer(config, vocab_size)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # or its address would be used again
        return tensor

    tokens = torch.randint(vocab_size, (rows, config.block))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(tokens, tokens)
    return sum(sizes.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"dropout": 0.1},
        {"norm": "layer", "positions": "learned", "mlp": "gelu", "bias": True, "tied": False},
        {"norm": "layer"},
        {"layers": 8},
    ],
)
def test_estimate_of_activations_is_within_a_quarter(changes: dict[str, Any]) -> None:
    shape = {"layers": 4, "heads": 4, "width": 64, "block": 64}
    config = ModelConfig(**{**shape, **changes})
    measured = kept_for_backward(config, 300, 4)
    assert activation_bytes(config, 300, 4, bf16=False) == pytest.approx(measured, rel=0.25)


def test_checkpointing_and_smaller_batches_need_less() -> None:
    config = ModelConfig(layers=12, heads=12, width=768, block=1024)
    slim = ModelConfig(layers=12, heads=12, width=768, block=1024, checkpointing=True)
    whole = peak_bytes(config, 32000, 16, bf16=True)
    assert peak_bytes(slim, 32000, 16, bf16=True) < 0.7 * whole
    assert peak_bytes(config, 32000, 8, bf16=True) < 0.7 * whole


def test_advice_has_numbers_that_can_be_typed() -> None:
    config = ModelConfig(layers=12, heads=12, width=768, block=1024)
    text = str(out_of_memory(config, 32000, 16, 2, bf16=False))
    assert "--batch 8 --accumulation 4" in text
    assert "--checkpointing" in text
    assert "--fused-loss on" in text
    assert "--vocab-size 16000" in text
    assert "--precision bf16" in text
    assert "GB" in text


def test_only_far_sizes_are_warned_of() -> None:
    assert "far too large" in (size_warning(10_000_000, 100_000) or "")
    assert "far too small" in (size_warning(100_000, 1_000_000_000) or "")
    assert size_warning(850_000, 419_000) is None
    assert size_warning(124_000_000, 10_000_000_000) is None


def test_bf16_is_not_chosen_for_narrow_models_on_a_cpu() -> None:
    assert not bf16_pays(torch.device("cpu"), 128)


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999 B"), (66_000_000, "66 MB"), (3.21e9, "3.2 GB")]
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert human_bytes(count) == text
