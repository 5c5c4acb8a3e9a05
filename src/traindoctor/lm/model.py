"""A decoder-only transformer, readable top to bottom.

B batch, T tokens, D width, H heads, K key/value heads, S head size, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.loss import next_token_loss

ROTARY_BASE = 10000.0
NORM_EPS = 1e-5
# Standard deviation of GPT-2's initial weights: logits start near 0, so the first loss is near ln V.
INIT_STD = 0.02


class Cache:
    """Keys and values of the tokens so far, one tensor per layer, allocated once."""

    def __init__(self, model: Transformer, batch: int, length: int, dtype: torch.dtype) -> None:
        config = model.config
        shape = (batch, config.num_kv_heads, length, config.head_size)
        device = model.embedding.weight.device
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.length = length


def make_norm(config: ModelConfig) -> nn.RMSNorm | nn.LayerNorm:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=NORM_EPS)
    return nn.LayerNorm(config.width, eps=NORM_EPS, bias=config.bias)


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin (block, S/2) of the angle by which each pair of a head turns at each position."""
    pair = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    angle = torch.outer(torch.arange(config.block, dtype=torch.float64), ROTARY_BASE**-pair)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (x[i], x[i + S/2]) of each head; x (B, H, T, S), cos and sin (T, S/2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention, with grouped keys and values where kv_heads < heads.

    Dropout falls on what the branch gives, not on the attention weights: those would have to be stored.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.num_kv_heads
        self.head_size = config.head_size
        sizes = (config.heads + 2 * config.num_kv_heads) * config.head_size
        self.qkv = nn.Linear(config.width, sizes, bias=config.bias)
        self.out = nn.Linear(config.width, config.width, bias=config.bias)

    def heads_of(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        """Queries (B, H, T, S), keys and values (B, K, T, S), turned to their positions."""
        B, T, _ = x.shape
        counts = (self.heads, self.kv_heads, self.kv_heads)
        # Cut before the heads are turned: their gradients then meet as they lie, without another copy.
        parts = self.qkv(x).split([n * self.head_size for n in counts], dim=-1)
        q, k, v = (part.view(B, T, -1, self.head_size).transpose(1, 2) for part in parts)
        if rotation is not None:
            cos, sin = (part.to(q.dtype) for part in rotation)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q, k, v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        B, _, T, _ = q.shape
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=causal,
            enable_gqa=self.heads != self.kv_heads,
        )
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(B, T, self.heads * self.head_size))
        return mixed

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = self.heads_of(x, rotation)
        return self.mix(q, k, v, None, causal=True)


class FeedForward(nn.Module):
    """Two linear layers with GELU, or the gated SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gated = config.mlp == "swiglu"
        self.approximate = "tanh" if config.mlp == "gelu-tanh" else "none"
        size = config.hidden_size
        self.up = nn.Linear(config.width, 2 * size if self.gated else size, bias=config.bias)
        self.down = nn.Linear(size, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, value = self.up(x).chunk(2, dim=-1)  # (B, T, F) each
            inner = F.silu(gate) * value
        else:
            inner = F.gelu(self.up(x), approximate=self.approximate)
        given: Tensor = self.down(inner)
        return given


class Block(nn.Module):
    """Attention and feed-forward, each added to the residual stream behind a norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.mlp_norm = make_norm(config)
        self.mlp = FeedForward(config)
        self.dropout = config.dropout

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self._drop(self.attention(self.attention_norm(x), rotation))
        return x + self._drop(self.mlp(self.mlp_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Transformer(nn.Module):
    """`model(tokens)` gives logits (B, T, V); `model(tokens, targets)` the mean loss in nats."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.fused_loss = False  # a way to compute, not a part of the model: the trainer chooses
        self.embedding = nn.Embedding(vocab_size, config.width)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.block, config.width)
        else:
            cos, sin = rotary_table(config)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = make_norm(config)
        self.head = nn.Linear(config.width, vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        self._initialise()

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        hidden = self.hidden(tokens)
        if targets is None:
            logits: Tensor = self.head(hidden)
            return logits
        return next_token_loss(hidden, self.head.weight, targets, fused=self.fused_loss)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The normalised residual stream (B, T, D) that the head reads."""
        T = tokens.shape[1]
        x, rotation = self._enter(tokens, slice(0, T))
        for block in self.blocks:
            if self.config.checkpointing and self.training:
                x = checkpoint(block, x, rotation, use_reentrant=False)
            else:
                x = block(x, rotation)
        normed: Tensor = self.norm(x)
        return normed

    def prefill(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Fills the cache with a prompt (B, T) from position 0; the logits (B, V) after its last token."""
        T = tokens.shape[1]
        x, rotation = self._enter(tokens, slice(0, T))
        for block, keys, values in self._with_cache(cache):
            q, k, v = block.attention.heads_of(block.attention_norm(x), rotation)
            keys[:, :, :T], values[:, :, :T] = k, v
            x = x + block.attention.mix(q, k, v, None, causal=True)
            x = x + block.mlp(block.mlp_norm(x))
        return self._last_logits(x)

    def decode(self, tokens: Tensor, position: int, cache: Cache) -> Tensor:
        """One more token per row: tokens (B, 1) at `position`; logits (B, V). The way of the CPU."""
        here = slice(position, position + 1)
        x, rotation = self._enter(tokens, here)
        for block, keys, values in self._with_cache(cache):
            q, k, v = block.attention.heads_of(block.attention_norm(x), rotation)
            keys[:, :, here], values[:, :, here] = k, v
            seen = keys[:, :, : position + 1], values[:, :, : position + 1]
            x = x + block.attention.mix(q, *seen, None, causal=False)
            x = x + block.mlp(block.mlp_norm(x))
        return self._last_logits(x)

    def decode_static(self, tokens: Tensor, position: Tensor, cache: Cache, length: int) -> Tensor:
        """As decode, with `position` (1,) on the device and no shape that depends on it: a CUDA graph's way.

        Attends over the first `length` places of the cache, those behind `position` masked.
        """
        mask = (torch.arange(length, device=tokens.device) <= position).view(1, 1, 1, length)
        x, rotation = self._enter(tokens, position)
        for block, keys, values in self._with_cache(cache):
            q, k, v = block.attention.heads_of(block.attention_norm(x), rotation)
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            x = x + block.attention.mix(
                q, keys[:, :, :length], values[:, :, :length], mask, causal=False
            )
            x = x + block.mlp(block.mlp_norm(x))
        return self._last_logits(x)

    def _with_cache(self, cache: Cache) -> Iterator[tuple[Block, Tensor, Tensor]]:
        return zip(cast("Iterable[Block]", self.blocks), cache.keys, cache.values)

    def _last_logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x[:, -1]))
        return logits

    def _enter(
        self, tokens: Tensor, where: slice | Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Embedded tokens (B, T, D) and the rotation of their positions."""
        x = self.embedding(tokens)
        if self.config.positions == "learned":
            return self._drop(x + self.positions.weight[where]), None
        return self._drop(x), (self.cos[where], self.sin[where])

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training) if self.config.dropout else x

    @torch.no_grad()
    def _initialise(self) -> None:
        # Each block adds two branches to the stream: scaled so, its variance stays that of the embedding.
        branch_std = INIT_STD / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                if name.endswith("bias"):
                    parameter.zero_()
            elif self.config.init == "xavier" and "embedding" not in name and "head" not in name:
                nn.init.xavier_uniform_(parameter)
            else:
                branch = name.endswith(("attention.out.weight", "mlp.down.weight"))
                parameter.normal_(std=branch_std if branch else INIT_STD)
        if self.config.tied:
            # A tied head meets its own embedding: the logit of the input token starts near std x width, and
            # in a wide model that alone lifts the first loss above ln V. Half of ln V is far enough below it.
            own_logit = INIT_STD * self.config.width
            self.norm.weight.mul_(min(1.0, 0.5 * math.log(max(self.vocab_size, 2)) / own_logit))


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Optimizer groups: decay on matrices, none on norms, biases and other vectors."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
