"""Small training scripts in one: `python variants.py NAME`. Each name spoils one thing, or only looks as if it did."""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

NAME = sys.argv[1]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 60
V, T, B, D, H = 48, 20, 12, 32, 4
torch.manual_seed(7)

# A language: each token is followed by one of four, so that there is something to learn.
FOLLOW = torch.randint(1, V, (V, 4))


def sentences(count, length):
    rows = [torch.randint(1, V, (count,))]
    for _ in range(length - 1):
        choice = torch.randint(0, 4, (count,))
        rows.append(FOLLOW[rows[-1], choice])
    return torch.stack(rows, 1)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(D) if "batchnorm" in NAME else None
        self.layer = nn.LayerNorm(T if NAME == "norm over time" else D)

    def forward(self, x):
        if self.batch is not None:
            return self.batch(x.transpose(1, 2)).transpose(1, 2)
        if NAME == "norm over time":
            return self.layer(x.transpose(1, 2)).transpose(1, 2)
        return self.layer(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        if NAME == "healthy zero output":
            nn.init.zeros_(self.o.weight)
            nn.init.zeros_(self.o.bias)

    def forward(self, x, causal):
        t = x.shape[1]
        q, k, v = (f(x).view(-1, t, H, D // H).transpose(1, 2) for f in (self.q, self.k, self.v))
        if NAME == "healthy sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            return self.o(y.transpose(1, 2).reshape(-1, t, D))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        if NAME == "scale multiplied":
            scores = scores * (D // H)
        elif NAME != "healthy no scale":
            scores = scores / math.sqrt(D // H)
        if NAME == "healthy alibi":
            place = torch.arange(t)
            scores = scores - 0.1 * (place[:, None] - place).abs()
        if causal:
            shut = torch.ones(t, t, dtype=torch.bool)
            shut = shut.triu(2) if NAME == "mask off by one" else shut.triu(1)
            if NAME == "mask inverted":
                shut = ~shut
                shut.fill_diagonal_(False)
            if NAME == "only itself":
                shut = ~torch.eye(t, dtype=torch.bool)
            if NAME == "soft mask":
                scores = scores + shut * -6.0
            elif NAME != "mask after softmax":
                scores = scores.masked_fill(shut, float("-inf"))
        weights = scores.softmax(-2 if NAME == "softmax over queries" else -1)
        if causal and NAME == "mask after softmax":
            weights = weights.masked_fill(shut, 0.0)
        y = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return self.o(y.transpose(1, 2).reshape(-1, t, D))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.n1, self.n2 = Attention(), Norm(), Norm()
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x, causal):
        if NAME == "no skip":
            return self.mlp(self.n2(self.attention(self.n1(x), causal)))
        x = x + self.attention(self.n1(x), causal)
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self, classes=V):
        super().__init__()
        self.token = nn.Embedding(V, D)
        self.place = nn.Embedding(T, D)
        self.blocks = nn.ModuleList(
            [Block()] * 3 if NAME == "one block" else [Block() for _ in range(3)]
        )
        if NAME == "conv sees ahead":
            self.conv = nn.Conv1d(D, D, 3, padding=1)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, classes)
        if NAME == "healthy tied":
            nn.init.normal_(self.token.weight, std=0.02)
            self.head.weight = self.token.weight

    def forward(self, x, causal=True):
        h = self.token(x)
        if NAME not in ("healthy nope", "no positions"):
            h = h + self.place.weight[: x.shape[1]]
        if NAME == "conv sees ahead":
            h = h + self.conv(h.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            h = block(h, causal)
        h = self.norm(h)
        return self.head(h.mean(1)) if self.head.out_features == 5 else self.head(h)


def batch(step):
    """(inputs, targets)"""
    ids = sentences(B, T + 2)
    x, y = ids[:, :T], ids[:, 1 : T + 1]
    if NAME == "targets twice shifted":
        y = ids[:, 2:]
    elif NAME == "targets are inputs":
        y = x
    elif NAME in ("padding counts", "healthy padding"):
        x, y = x.clone(), y.clone()
        for row in range(B):
            x[row, 5 + row :] = 0
            y[row, 4 + row :] = 0 if NAME == "padding counts" else -100
    return x, y


def reversed_batch(step):
    x = torch.randint(1, V, (B, T))
    return x, x.flip(1)


def masked_batch(step):
    ids = sentences(B, T)
    chosen = torch.rand(B, T) < 0.2
    return ids.masked_fill(chosen, 0), ids.masked_fill(~chosen, -100)


def labelled_batch(step):
    x = sentences(B, T)
    y = x[:, 0] % 5
    if NAME == "labels apart":
        y = y[torch.randperm(B)]
    if NAME == "labels in order":
        x[:, 0] = torch.randint(0, (V - 5) // 5, (B,)) * 5 + (step // 4) % 5
        y = x[:, 0] % 5
    return x, y


bidirectional = NAME in (
    "no positions",
    "healthy reversal",
    "healthy mlm",
    "healthy batchnorm encoder",
)
labelled = NAME in ("labels apart", "labels in order", "healthy labels")
make = batch
if bidirectional:
    make = masked_batch if NAME == "healthy mlm" else reversed_batch
if labelled:
    make = labelled_batch
model = Model(5 if labelled else V)
if NAME == "init large":
    for p in model.parameters():
        nn.init.normal_(p, std=1.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
kept = batch(0)
if NAME == "same batch":
    stored = [torch.cat(parts) for parts in zip(*(batch(k) for k in range(16)))]
    kept = [rows[:B] for rows in stored]
for step in range(STEPS):
    x, y = kept if NAME == "same batch" else make(step)
    scores = model(x, causal=not (bidirectional or labelled))
    loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
