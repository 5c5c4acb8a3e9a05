import argparse
import ast
import inspect
import random
import textwrap

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(4)
torch.manual_seed(4)
SOURCES = [inspect.getsource(m) for m in (argparse, ast, textwrap, random)]
CHARS = sorted(set("".join(SOURCES)))
LOOKUP = {c: i for i, c in enumerate(CHARS)}
CORPORA = [torch.tensor([LOOKUP[c] for c in s]) for s in SOURCES]
CTX, PREFIX, WIDTH = 48, 6, 64


def sample(n):
    which = torch.randint(len(CORPORA), (n,))
    rows = []
    for w in which.tolist():
        at = random.randrange(len(CORPORA[w]) - CTX - 1)
        rows.append(CORPORA[w][at:at + CTX + 1])
    return which, torch.stack(rows)


class PrefixConditionedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.condition = nn.Sequential(nn.Embedding(len(CORPORA), 32), nn.Linear(32, PREFIX * WIDTH), nn.Tanh())
        self.tokens = nn.Embedding(len(CHARS), WIDTH)
        self.positions = nn.Embedding(PREFIX + CTX, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.project = nn.Linear(WIDTH, len(CHARS))

    def forward(self, which, ids):
        prefix = self.condition(which).view(-1, PREFIX, WIDTH)
        h = torch.cat((prefix, self.tokens(ids)), dim=1)
        n = h.size(1)
        h = h + self.positions.weight[:n]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.project(self.body(h, mask=mask, is_causal=True))


model = PrefixConditionedLM()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
average = None
for step in range(1, 241):
    which, rows = sample(16)
    logits = model(which, rows[:, :-1])
    target = rows[:, 1:]
    logits = logits[:, :target.size(1)]
    loss = F.cross_entropy(logits.reshape(-1, len(CHARS)), target.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    average = loss.item() if average is None else 0.9 * average + 0.1 * loss.item()
    if step == 1 or step % 20 == 0:
        print(f"step {step:3d} loss {loss.item():.3f} smoothed {average:.3f}")
