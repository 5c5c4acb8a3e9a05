from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 128
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    vocab: int = 66
    theta: float = 10000.0


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


def rope(x, theta):
    t, hd = x.shape[-2], x.shape[-1]
    freq = theta ** (-torch.arange(0, hd, 2, dtype=torch.float32) / hd)
    ang = torch.arange(t)[:, None] * freq
    c, s = ang.cos(), ang.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * c - b * s, a * s + b * c), dim=-1)


class GroupedAttention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.hd = a.dim // a.n_heads
        self.wq = nn.Linear(a.dim, a.n_heads * self.hd, bias=False)
        self.wk = nn.Linear(a.dim, a.n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(a.dim, a.n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(a.n_heads * self.hd, a.dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, -1, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, -1, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, -1, self.hd).transpose(1, 2)
        q = rope(F.normalize(q, dim=-1), self.a.theta)
        k = rope(F.normalize(k, dim=-1), self.a.theta)
        rep = self.a.n_heads // self.a.n_kv_heads
        k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(b, t, -1))


class SwiGLU(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, h, bias=False), nn.Linear(d, h, bias=False), nn.Linear(h, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.attn = nn.ModuleList(GroupedAttention(a) for _ in range(a.n_layers))
        self.mlp = nn.ModuleList(SwiGLU(a.dim, 2 * a.dim) for _ in range(a.n_layers))
        self.norms = nn.ModuleList(RMSNorm(a.dim) for _ in range(2 * a.n_layers + 1))
        self.lm_head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids)
        for i, (attn, mlp) in enumerate(zip(self.attn, self.mlp)):
            x = x + attn(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.lm_head(self.norms[-1](x))


def copy_batch(n, half=16, symbols=64):
    first = torch.randint(2, symbols + 2, (n, half))
    sep = torch.ones(n, 1, dtype=torch.long)
    return torch.cat((sep, first, sep, first), dim=1)


torch.manual_seed(2024)
args = ModelArgs()
model = Decoder(args)
optim = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
TOTAL = 130
sched = torch.optim.lr_scheduler.OneCycleLR(optim, 3e-3, total_steps=TOTAL, pct_start=0.1)
for it in range(TOTAL):
    seq = copy_batch(32)
    logits = model(seq[:, :-1])
    per = F.cross_entropy(logits.transpose(1, 2), seq[:, 1:], reduction="none")
    loss = per[:, 17:].mean()
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    sched.step()
    if it % 10 == 0 or it == TOTAL - 1:
        print(f"iter {it} copy loss {loss.item():.4f}")
