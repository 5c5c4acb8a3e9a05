import random

import torch
import torch.nn as nn
import torch.nn.functional as F

OPS = {"max": max, "min": min, "med": lambda v: sorted(v)[len(v) // 2]}
TOKENS = list("0123456789") + list(OPS) + ["(", ")", "_"]
INDEX = {t: i for i, t in enumerate(TOKENS)}
LEN = 8


def expression(rng):
    op = rng.choice(list(OPS))
    v = [rng.randint(0, 9) for _ in range(5)]
    words = [op, "("] + [str(d) for d in v] + [")"]
    return words + ["_"] * (LEN - len(words)), OPS[op](v)


def make(n, rng):
    rows, ys = zip(*(expression(rng) for _ in range(n)))
    return torch.tensor([[INDEX[w] for w in r] for r in rows]), torch.tensor(ys)


class PrototypeHead(nn.Module):
    def __init__(self, d, units, classes, radius):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(units, d))
        self.vote = nn.Linear(units, classes)
        self.radius = radius

    def forward(self, h):
        near = F.relu(self.radius - torch.cdist(h, self.centers))
        return self.vote(near)


class ExpressionReader(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(len(TOKENS), d)
        self.pos = nn.Embedding(LEN, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.head = PrototypeHead(d, 96, 10, radius=1.0)

    def forward(self, ids):
        h = self.emb(ids) + self.pos.weight
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h)[:, 0])


def fit():
    torch.manual_seed(51)
    rng = random.Random(510)
    net = ExpressionReader()
    optim = torch.optim.AdamW(net.parameters(), lr=1.5e-3)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optim, 240, eta_min=1e-4)
    for step in range(240):
        ids, y = make(48, rng)
        out = net(ids)
        loss = F.cross_entropy(out, y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        plan.step()
        if step % 24 == 0 or step == 239:
            print("step", step, "loss", round(loss.item(), 4), "acc", round((out.argmax(1) == y).float().mean().item(), 3))


fit()
