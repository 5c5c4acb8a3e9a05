import math
import random

import torch
from torch import einsum, nn

PAD, BOS, EOS = 0, 1, 2
LETTERS = "abcdefghijklmnop"
rng = random.Random(8)


def make_pair():
    n = rng.randint(5, 9)
    src = [rng.randrange(len(LETTERS)) + 3 for _ in range(n)]
    tgt = [BOS] + src[::-1] + [EOS]
    return src, tgt


def pad(rows):
    m = max(map(len, rows))
    return torch.tensor([r + [PAD] * (m - len(r)) for r in rows])


def get_batch(n):
    src, tgt = zip(*[make_pair() for _ in range(n)])
    return pad(src), pad(tgt)


class Attend(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.scale = h, (d // h) ** -0.5
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, memory, blocked):
        b, i, _ = x.shape
        j = memory.shape[1]
        q = self.q(x).view(b, i, self.h, -1)
        k = self.k(memory).view(b, j, self.h, -1)
        v = self.v(memory).view(b, j, self.h, -1)
        dots = einsum("bihd,bjhd->bijh", q, k) * self.scale
        dots = dots.masked_fill(blocked.unsqueeze(-1), -1e9)
        w = dots.softmax(dim=-1).masked_fill(blocked.unsqueeze(-1), 0.0)
        return self.o(einsum("bijh,bjhd->bihd", w, v).reshape(b, i, -1))


class Feed(nn.Sequential):
    def __init__(self, d):
        super().__init__(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))


class EncLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.a, self.f = Attend(d, h), Feed(d)
        self.n = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))

    def forward(self, x, blocked):
        y = self.n[0](x)
        x = x + self.a(y, y, blocked)
        return x + self.f(self.n[1](x))


class DecLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.a, self.c, self.f = Attend(d, h), Attend(d, h), Feed(d)
        self.n = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))

    def forward(self, x, memory, self_blocked, cross_blocked):
        y = self.n[0](x)
        x = x + self.a(y, y, self_blocked)
        x = x + self.c(self.n[1](x), memory, cross_blocked)
        return x + self.f(self.n[2](x))


class Seq2Seq(nn.Module):
    def __init__(self, vocab, d=64, h=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        t = torch.arange(16).unsqueeze(1) * torch.exp(torch.arange(0, d, 2) * (-math.log(1e3) / d))
        self.register_buffer("pos", torch.stack((t.sin(), t.cos()), -1).flatten(1))
        self.enc = nn.ModuleList([EncLayer(d, h)])
        self.dec = nn.ModuleList([DecLayer(d, h) for _ in range(2)])
        self.norm_e, self.norm_d = nn.LayerNorm(d), nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)

    def forward(self, src, tgt):
        m, x = self.embed(src) + self.pos[:src.size(1)], self.embed(tgt) + self.pos[:tgt.size(1)]
        src_blocked = (src == PAD).unsqueeze(1)
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1).unsqueeze(0)
        for layer in self.enc:
            m = layer(m, src_blocked)
        m = self.norm_e(m)
        for layer in self.dec:
            x = layer(x, m, causal, src_blocked)
        return self.out(self.norm_d(x))


torch.manual_seed(8)
model = Seq2Seq(len(LETTERS) + 3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optim = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
recent = []
for update in range(1, 141):
    src, tgt = get_batch(48)
    pred = model(src, tgt[:, :-1])
    loss = criterion(pred.transpose(1, 2), tgt[:, 1:])
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    recent.append(loss.item())
    if update == 1 or update % 20 == 0:
        print(f"update {update} train_loss={sum(recent) / len(recent):.3f}")
        recent.clear()
