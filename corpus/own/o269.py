import ast
import inspect
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class DConv(nn.Module):
    def __init__(self, channels, k=3):
        super().__init__()
        self.k = k
        self.conv = nn.Conv1d(channels, channels, k, groups=channels)
        with torch.no_grad():
            self.conv.weight.fill_(1.0 / k)

    def forward(self, x):
        x = F.pad(x.transpose(1, 2), (self.k // 2, self.k // 2))
        return self.conv(x).transpose(1, 2)


class PrimerAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.dq, self.dk, self.dv = (DConv(d) for _ in range(3))
        self.o = nn.Linear(d, d, bias=False)

    def forward(self, x, mask):
        b, t, d = x.shape
        shape = lambda z: z.view(b, t, self.heads, -1).transpose(1, 2)
        q, k, v = shape(self.dq(self.q(x))), shape(self.dk(self.k(x))), shape(self.dv(self.v(x)))
        scores = q @ k.mT / math.sqrt(q.size(-1))
        w = scores.masked_fill(mask[:t, :t], float("-inf")).softmax(-1)
        return self.o((w @ v).transpose(1, 2).reshape(b, t, d))


class Primer(nn.Module):
    def __init__(self, vocab, ctx, d=64, depth=2, heads=4):
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.p = nn.Embedding(ctx, d)
        self.att = nn.ModuleList(PrimerAttention(d, heads) for _ in range(depth))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(d, 3 * d), SquaredReLU(), nn.Linear(3 * d, d)) for _ in range(depth))
        self.na = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.nf = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.n = nn.LayerNorm(d)
        self.u = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.ones(ctx, ctx).triu(1).bool())

    def forward(self, ids):
        x = self.e(ids) + self.p.weight[:ids.size(1)]
        for na, att, nf, ffn in zip(self.na, self.att, self.nf, self.ffn):
            x = x + att(na(x), self.mask)
            x = x + ffn(nf(x))
        return self.u(self.n(x))


torch.manual_seed(60)
raw = inspect.getsource(ast) + inspect.getsource(inspect)
ids = torch.tensor(list(raw.encode()))
symbols, ids = ids.unique(return_inverse=True)
cut = int(0.95 * len(ids))
CTX, BATCH = 48, 12
net = Primer(len(symbols), CTX)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)


def get(part):
    at = torch.randint(len(part) - CTX - 1, (BATCH,))
    rows = part[at[:, None] + torch.arange(CTX + 1)]
    return rows[:, :-1], rows[:, 1:]


for i in range(190):
    x, y = get(ids[:cut])
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if i % 19 == 0 or i == 189:
        with torch.no_grad():
            vx, vy = get(ids[cut:])
            val = F.cross_entropy(net(vx).flatten(0, 1), vy.flatten()).item()
        print(f"{i:4d} loss {loss.item():.4f} held-out {val:.4f}")

text = ids[cut:cut + 16].tolist()
with torch.no_grad():
    while len(text) < CTX:
        text.append(torch.multinomial(net(torch.tensor([text]))[0, -1].softmax(-1), 1).item())
print(repr(bytes(symbols[t].item() for t in text).decode(errors="replace")))
