import collections
import inspect
import io
import json.decoder
import keyword
import tokenize

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)
KINDS = ["space", "name", "keyword", "number", "string", "op", "comment"]


def tagged(source):
    grid = [[0] * (len(l) + 1) for l in source.splitlines(keepends=True)]
    for tok in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = {tokenize.NAME: 1, tokenize.NUMBER: 3, tokenize.STRING: 4, tokenize.OP: 5, tokenize.COMMENT: 6}.get(tok.type)
        if kind is None:
            continue
        if kind == 1 and keyword.iskeyword(tok.string):
            kind = 2
        (r0, c0), (r1, c1) = tok.start, tok.end
        for r in range(r0, r1 + 1):
            lo, hi = (c0 if r == r0 else 0), (c1 if r == r1 else len(grid[r - 1]) - 1)
            for c in range(lo, hi):
                grid[r - 1][c] = kind
    text = "".join(source.splitlines(keepends=True))
    tags = [k for row in grid for k in row[:-1]]
    return text, tags


text, tags = tagged(inspect.getsource(collections) + inspect.getsource(json.decoder))
chars = sorted(set(text))
X = torch.tensor([chars.index(c) for c in text])
Y = torch.tensor(tags)
SPAN = 48


class Tagger(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.char = nn.Embedding(len(chars), width)
        self.rnn = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.attn = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.tag = nn.Linear(width, len(KINDS))

    def forward(self, ids):
        h, _ = self.rnn(self.char(ids))
        h = self.norm(h + self.attn(h, h, h, need_weights=False)[0])
        return F.log_softmax(self.tag(h), dim=-1)


model = Tagger()
weights = (1.0 / torch.bincount(Y, minlength=len(KINDS)).float().clamp(min=1).sqrt())
weights = weights / weights.mean()
criterion = nn.CrossEntropyLoss(weight=weights)
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=150)
model.train()
for step in range(150):
    start = torch.randint(len(X) - SPAN, (16, 1)) + torch.arange(SPAN)
    probs = model(X[start])
    loss = criterion(probs.reshape(-1, len(KINDS)), Y[start].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
    scheduler.step()
    if step % 15 == 0 or step == 149:
        acc = (probs.argmax(-1) == Y[start]).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} tag accuracy {acc:.3f}")
