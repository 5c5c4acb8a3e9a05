import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(8)
torch.set_num_threads(1)
CTX, BATCH, STEPS, AHEAD = (48, 16, 260, 4)
D, H, DEPTH = (64, 4, 2)
text = "".join((topics[k] for k in sorted(topics))).lower()
alphabet = sorted(set(text))
lut = {c: i for i, c in enumerate(alphabet)}
stream = torch.tensor([lut[c] for c in text])
split = int(len(stream) * 0.93)
N = len(alphabet)


def batch(lo, hi, gen):
    at = torch.randint(lo, hi - CTX - AHEAD, (BATCH,), generator=gen)
    rows = stream[at[:, None] + torch.arange(CTX + AHEAD)]
    return (rows[:, :CTX], [rows[:, 1 + j : 1 + j + CTX] for j in range(AHEAD)])


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class Rotary(nn.Module):
    def __init__(self, d):
        super().__init__()
        f = 1 / 1000 ** torch.linspace(0, 1, d // 4)
        f = torch.cat([f, torch.zeros(d // 4)])
        a = torch.outer(torch.arange(CTX), f)
        self.register_buffer("c", a.cos()[None, :, None])
        self.register_buffer("s", a.sin()[None, :, None])

    def forward(self, x):
        t = x.size(1)
        a, b = x.chunk(2, -1)
        c, s = (self.c[:, :t], self.s[:, :t])
        return torch.cat([a * c + b * s, b * c - a * s], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3 * D, D) / math.sqrt(D) * 0.6)
        self.o = nn.Parameter(torch.zeros(D, D))
        self.w1 = nn.Parameter(torch.randn(4 * D, D) / math.sqrt(D) * 0.6)
        self.w2 = nn.Parameter(torch.zeros(D, 4 * D))
        self.rot = Rotary(D // H)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = F.linear(norm(x), self.qkv).view(B, T, 3, H, D // H).unbind(2)
        q, k = (self.rot(norm(q)), self.rot(norm(k)))
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=0.2
        )
        x = x + F.linear(y.transpose(1, 2).reshape(B, T, D), self.o)
        return x + F.linear(F.linear(norm(x), self.w1).relu().square(), self.w2)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(N, D)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])

    def forward(self, i):
        x = norm(self.emb(i))
        for b in self.blocks:
            x = b(x)
        return norm(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(D, D, bias=False)
        self.out = nn.Linear(D, N, bias=False)
        nn.init.zeros_(self.mix.weight)
        nn.init.zeros_(self.out.weight)

    def forward(self, z):
        logits = self.out(norm(z + self.mix(z)))
        return 15 * torch.tanh(logits / 15)


def orthogonalize(g, steps=5):
    x = g / (g.norm() + 1e-07)
    flip = x.size(0) > x.size(1)
    x = x.t() if flip else x
    for _ in range(steps):
        a = x @ x.t()
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x.t() if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                g = p.grad.lerp(buf, group["momentum"])
                p.add_(orthogonalize(g), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


trunk, heads = (Trunk(), nn.ModuleList([Head() for _ in range(AHEAD)]))
muon = Muon(trunk.blocks.parameters(), lr=0.02)
adam = torch.optim.Adam(
    [{"params": trunk.emb.parameters(), "lr": 0.02}, {"params": heads.parameters(), "lr": 0.006}],
    betas=(0.8, 0.95),
    eps=1e-10,
)
base = [(g, g["lr"]) for o in (muon, adam) for g in o.param_groups]
gen = torch.Generator().manual_seed(0)
for step in range(STEPS):
    frac = step / STEPS
    for g, lr in base:
        g["lr"] = lr * (1.0 if frac < 0.5 else (1 - frac) / 0.5 + 0.01)
    x, targets = batch(0, split, gen)
    z = trunk(x)
    d = z.detach().requires_grad_(True)
    parts = []
    for head, y in zip(heads, targets):
        part = F.cross_entropy(head(d).flatten(0, 1), y.flatten())
        part.backward()
        parts.append(part.item())
    z.backward(d.grad)
    for o in (muon, adam):
        o.step()
        o.zero_grad()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"{step:4d} sum {sum(parts):.3f} = " + " + ".join((f"{p:.3f}" for p in parts)))
with torch.no_grad():
    g = torch.Generator().manual_seed(99)
    tot = [0.0] * AHEAD
    for _ in range(12):
        x, targets = batch(split, len(stream), g)
        z = trunk(x)
        for j, (head, y) in enumerate(zip(heads, targets)):
            tot[j] += F.cross_entropy(head(z).flatten(0, 1), y.flatten()).item() / 12
print("held out, by distance: " + " ".join((f"{t:.3f}" for t in tot)))
