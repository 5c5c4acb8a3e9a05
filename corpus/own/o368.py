import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(7)
torch.manual_seed(7)
MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
          "november", "december"]
CHARS = ["<pad>", "<s>", "</s>"] + sorted(set("abcdefghijklmnopqrstuvwxyz0123456789 ,-/"))
INDEX = {c: i for i, c in enumerate(CHARS)}


def sample():
    d, m, y = random.randint(1, 28), random.randint(1, 12), random.randint(1950, 2049)
    form = random.randrange(3)
    src = (f"{d} {MONTHS[m - 1]} {y}", f"{MONTHS[m - 1][:3]} {d}, {y}", f"{d}/{m}/{y}")[form]
    return src, f"{y}-{m:02d}-{d:02d}"


def pack(strings, ends=False):
    rows = [([1] if ends else []) + [INDEX[c] for c in s] + ([2] if ends else []) for s in strings]
    w = max(map(len, rows))
    return torch.tensor([r + [0] * (w - len(r)) for r in rows])


def stream(chunks, size):
    for _ in range(chunks):
        yield [sample() for _ in range(size)]


class DateModel(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(len(CHARS), d, padding_idx=0)
        self.src_pos = nn.Embedding(24, d)
        self.tgt_pos = nn.Embedding(16, d)
        self.core = nn.Transformer(d, 4, 2, 2, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, len(CHARS))

    def forward(self, src, tgt):
        s = self.tok(src) + self.src_pos.weight[:src.size(1)]
        t = self.tok(tgt) + self.tgt_pos.weight[:tgt.size(1)]
        causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        pad = src == 0
        h = self.core(s, t, tgt_mask=causal, src_key_padding_mask=pad, memory_key_padding_mask=pad)
        return self.out(h)


def fit_chunk(model, rows, lr, batch=20):
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.95, nesterov=True)
    losses = []
    for at in range(0, len(rows), batch):
        part = rows[at:at + batch]
        src, tgt = pack([a for a, _ in part]), pack([b for _, b in part], ends=True)
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), tgt[:, 1:], ignore_index=0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses


model = DateModel()
lr = 0.03
seen = 0
for n, rows in enumerate(stream(64, 60)):
    losses = fit_chunk(model, rows, lr)
    seen += len(losses)
    if n == 0:
        print(f"chunk {n} steps {seen} loss {losses[0]:.4f}")
    if n % 8 == 7:
        print(f"chunk {n} steps {seen} loss {sum(losses) / len(losses):.4f}")
