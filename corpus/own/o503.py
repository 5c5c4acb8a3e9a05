import math
import torch
from torch import nn
import torch.nn.functional as F
import pydoc_data.topics as src

PRE, LEN = 16, 64


def load():
    raw = "\n".join(src.topics[k] for k in sorted(src.topics)).encode("ascii", "ignore")[:400_000]
    used = sorted(set(raw))
    lut = {b: i for i, b in enumerate(used)}
    return torch.tensor([lut[b] for b in raw]), len(used)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g


def rope(x):
    T, D = x.shape[-2:]
    inv = 10000 ** (-torch.arange(0, D, 2).float() / D)
    ang = torch.arange(T).float()[:, None] * inv
    c, s = ang.cos(), ang.sin()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, d, hq, hkv):
        super().__init__()
        self.hq, self.hkv, self.dh = hq, hkv, d // hq
        self.na, self.nf = RMSNorm(d), RMSNorm(d)
        self.q = nn.Linear(d, hq * self.dh, bias=False)
        self.kv = nn.Linear(d, 2 * hkv * self.dh, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        f = 2 * d
        self.up, self.gate, self.down = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x, mask):
        B, T, D = x.shape
        h = self.na(x)
        q = self.q(h).view(B, T, self.hq, self.dh).transpose(1, 2)
        k, v = self.kv(h).view(B, T, 2, self.hkv, self.dh).permute(2, 0, 3, 1, 4)
        rep = self.hq // self.hkv
        k, v = rope(k).repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
        w = (rope(q) @ k.transpose(-1, -2)) / math.sqrt(self.dh)
        w = w.masked_fill(~mask, -1e9).softmax(-1)
        x = x + self.o((w @ v).transpose(1, 2).reshape(B, T, D))
        h = self.nf(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class PrefixLM(nn.Module):
    def __init__(self, vocab, d=64, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=d ** -0.5)
        self.layers = nn.ModuleList([Layer(d, 4, 2) for _ in range(layers)])
        self.nrm = RMSNorm(d)
        m = torch.tril(torch.ones(LEN, LEN)).bool()
        m[:PRE, :PRE] = True
        self.register_buffer("mask", m)

    def forward(self, x):
        h = self.emb(x) * math.sqrt(self.emb.embedding_dim)
        for l in self.layers:
            h = l(h, self.mask[: x.size(1), : x.size(1)])
        return self.nrm(h) @ self.emb.weight.T


def batch(data, n):
    i = torch.randint(0, len(data) - LEN - 1, (n,))
    w = data[i[:, None] + torch.arange(LEN + 1)]
    return w[:, :-1], w[:, 1:]


def lm_loss(model, x, y):

    return F.cross_entropy(model(x)[:, PRE - 1:].flatten(0, 1), y[:, PRE - 1:].flatten())


torch.manual_seed(15)
data, V = load()
tr, va = data[:-20000], data[-20000:]
model = PrefixLM(V)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.1, betas=(0.9, 0.95))
N = 180
for it in range(N):
    opt.param_groups[0]["lr"] = 4e-3 * min((it + 1) / 15, 0.5 * (1 + math.cos(math.pi * it / N)) + 0.02)
    loss = lm_loss(model, *batch(tr, 16))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    gn = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 15 == 0 or it == N - 1:
        with torch.no_grad():
            v = lm_loss(model, *batch(va, 32)).item()
        print(f"{it:4d} | train {loss.item():.4f} | val {v:.4f} | grad norm {gn:.2f}")
