"""The normalisation averages over the batch instead of the features."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, T, D = 32, 16, 32  # vocabulary, length, width
future = torch.ones(T, T, dtype=torch.bool).triu(1)
text = torch.randint(1, 5, (20000,)).cumsum(0) % V  # 1 to 4 above the token before


def batch(rows=16):
    ids = text[torch.randint(len(text) - T, (rows, 1)) + torch.arange(T + 1)]
    return ids[:, :-1], ids[:, 1:]


class Norm(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()  # should be over the last axis


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = Norm(), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(Norm(), nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.mT / D**0.5
        x = x + self.out(scores.masked_fill(future, float("-inf")).softmax(-1) @ v)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.body = nn.Sequential(Block(), Block(), nn.LayerNorm(D), nn.Linear(D, V))

    def forward(self, x):
        return self.body(self.tokens(x) + self.places.weight)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    x, y = batch()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
