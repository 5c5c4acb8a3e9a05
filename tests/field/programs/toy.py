"""What the programs of this folder share: a tiny language model, a toy language, and a digest of a run's end.

Everything runs on the device named by TRAINDOCTOR_FIELD_DEVICE (cpu or cuda).
"""

from __future__ import annotations

import hashlib
import os
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = torch.device(os.environ.get("TRAINDOCTOR_FIELD_DEVICE", "cpu"))
VOCABULARY, LENGTH = 23, 12


def seed(value: int = 0) -> None:
    """Seeds every random state a script may use; on CUDA only deterministic kernels are left."""
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)
    if DEVICE.type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Under warn_only the fused kernels of attention sum in any order.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


class Block(nn.Module):
    """One transformer block, attention first."""

    def __init__(self, width: int, dropout: float, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        heads = self.queries_keys_values(self.norm1(x)).view(B, T, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # (B, H, T, D / H) each
        chance = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=chance)
        x = x + F.dropout(
            self.mix(mixed.transpose(1, 2).reshape(B, T, D)), self.dropout, self.training
        )
        return x + self.mlp(self.norm2(x))


class TinyLM(nn.Module):
    """A causal language model of a few thousand parameters."""

    def __init__(self, dropout: float = 0.1, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.position(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # (B, T, V)


def tiny_model(**settings: Any) -> TinyLM:
    """A model on the device of this run."""
    return TinyLM(**settings).to(DEVICE)


def batch(size: int = 4, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Rows of the toy language (each token is the last one plus 3) and the same rows one token on."""
    first = torch.randint(0, VOCABULARY, (size, 1), generator=generator)
    rows = ((first + 3 * torch.arange(LENGTH + 1)) % VOCABULARY).to(DEVICE)
    return rows[:, :-1], rows[:, 1:]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def fit(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 12, word: str = "step"
) -> None:
    """The usual loop, for programs whose point is elsewhere."""
    for step in range(steps):
        tokens, targets = batch()
        loss = loss_of(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(word, step, repr(loss.item()), flush=True)


def digest(*things: Any) -> str:
    """A short hash of tensors, modules, optimizers and plain values, order included."""
    hashed = hashlib.sha256()
    for thing in things:
        _feed(hashed, thing)
    return hashed.hexdigest()[:16]


def _feed(hashed: Any, thing: Any) -> None:
    if isinstance(thing, Tensor):
        dense = thing.detach().to_dense() if thing.layout is torch.sparse_coo else thing.detach()
        plain = dense.resolve_conj().resolve_neg().cpu().contiguous()
        hashed.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        hashed.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(thing, dict):
        for key, value in thing.items():
            hashed.update(str(key).encode())
            _feed(hashed, value)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            _feed(hashed, value)
    elif hasattr(thing, "state_dict"):
        _feed(hashed, thing.state_dict())
    else:
        hashed.update(repr(thing).encode())


def random_states() -> str:
    """A digest of every random state: torch, Python, numpy, and CUDA's on a GPU."""
    states: list[Any] = [torch.get_rng_state(), random.getstate(), np.random.get_state()]
    if DEVICE.type == "cuda":
        states.append(torch.cuda.get_rng_state())
    return digest(*[state if isinstance(state, Tensor) else repr(state) for state in states])


def finish(*things: Any) -> None:
    """The last line of a program: digests of what it trained and of all random states."""
    print("end", digest(*things), "random", random_states(), flush=True)
