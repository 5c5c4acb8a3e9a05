"""GPT-2 as nanoGPT-style loops write it: what our model is timed against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.c_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.c_out(self.gelu(self.c_fc(self.ln_2(x))))


class PlainGPT(nn.Module):
    """Its parameters stand in the order of traindoctor's, so that one can be copied into the other."""

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        width = shape["width"]
        self.wte = nn.Embedding(shape["vocab"], width)
        self.wpe = nn.Embedding(shape["block"], width)
        self.h = nn.ModuleList(PlainBlock(width, shape["heads"]) for _ in range(shape["layers"]))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, shape["vocab"], bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
