import inspect
import argparse
import decimal
import typing
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Args:
    dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    n_kv: int = 2
    ffn: int = 160
    ctx: int = 48
    conv: int = 3
    theta: float = 1e4


class RMS(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


class ShortConv(nn.Module):
    def __init__(self, ch, k):
        super().__init__()
        self.k = k
        self.conv = nn.Conv1d(ch, ch, k, groups=ch, padding=k // 2)

    def forward(self, x):
        y = self.conv(x.transpose(1, 2))[..., : x.shape[1]]
        return x + F.silu(y).transpose(1, 2)


def rope(x, freqs):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs[: x.shape[1], None]).flatten(-2)


class GQA(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a, self.hd = a, a.dim // a.n_heads
        self.wq = nn.Linear(a.dim, a.n_heads * self.hd, bias=False)
        self.wk = nn.Linear(a.dim, a.n_kv * self.hd, bias=False)
        self.wv = nn.Linear(a.dim, a.n_kv * self.hd, bias=False)
        self.wo = nn.Linear(a.dim, a.dim, bias=False)
        self.kconv = ShortConv(a.n_kv * self.hd, a.conv)
        self.vconv = ShortConv(a.n_kv * self.hd, a.conv)

    def forward(self, x, freqs):
        B, T, _ = x.shape
        q = rope(self.wq(x).view(B, T, -1, self.hd), freqs)
        k = rope(self.kconv(self.wk(x)).view(B, T, -1, self.hd), freqs)
        v = self.vconv(self.wv(x)).view(B, T, -1, self.hd)
        rep = self.a.n_heads // self.a.n_kv
        k, v = k.repeat_interleave(rep, 2), v.repeat_interleave(rep, 2)
        o = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return self.wo(o.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.an, self.fn = RMS(a.dim), RMS(a.dim)
        self.attn = GQA(a)
        self.gate_up = nn.Linear(a.dim, 2 * a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x, freqs):
        x = x + self.attn(self.an(x), freqs)
        g, u = self.gate_up(self.fn(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Llama(nn.Module):
    def __init__(self, a, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, a.dim)
        self.layers = nn.ModuleList(Layer(a) for _ in range(a.n_layers))
        self.norm = RMS(a.dim)
        self.out = nn.Linear(a.dim, vocab, bias=False)
        hd = a.dim // a.n_heads
        f = a.theta ** (-torch.arange(0, hd, 2) / hd)
        ang = torch.outer(torch.arange(a.ctx).float(), f)
        self.register_buffer("freqs", torch.polar(torch.ones_like(ang), ang), persistent=False)

    def forward(self, ids):
        x = self.emb(ids)
        for l in self.layers:
            x = l(x, self.freqs)
        return self.out(self.norm(x))


torch.manual_seed(1337)
args = Args()
raw = "\n".join(inspect.getsource(m) for m in (argparse, inspect, typing)).encode("ascii", "ignore")
data = torch.tensor(list(raw))
model = Llama(args, 128)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
avg = None
for step in range(220):
    at = torch.randint(len(data) - args.ctx - 1, (16,))
    rows = data[at[:, None] + torch.arange(args.ctx + 1)]
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
    if step % 20 == 0 or step == 219:
        print(f"step {step:4d} | loss {avg:.4f}")
