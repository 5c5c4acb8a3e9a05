import random
import re
import keyword
import inspect
import subprocess
import tarfile
import unittest.mock
import statistics
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(13)
random.seed(13)
SOURCES = [subprocess, tarfile, unittest.mock, statistics]


def read():
    texts, labels = [], []
    for k, mod in enumerate(SOURCES):
        lines = inspect.getsource(mod).splitlines()
        chunks = [" ".join(lines[i:i + n]) for i in range(0, len(lines) - 8, 3) for n in (random.randint(3, 8),)]
        for c in random.sample(chunks, 280):
            toks = re.findall(r"[A-Za-z_]{2,}", c)[:40]
            if len(toks) >= 4:
                texts.append(toks)
                labels.append(k)
    order = list(range(len(texts)))
    random.shuffle(order)
    return [texts[i] for i in order], [labels[i] for i in order]


def bucketed(texts, labels, size):
    texts = sorted(texts, key=len)
    batches = []
    for i in range(0, len(texts) - size + 1, size):
        ids = [torch.tensor([stoi.get(t, 1) for t in row]) for row in texts[i:i + size]]
        batches.append((pad_sequence(ids, batch_first=True), torch.tensor(labels[i:i + size])))
    return batches


class Classifier(nn.Module):
    def __init__(self, vocab, classes, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Embedding(40, d)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.1, batch_first=True, activation="gelu")
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(d, classes)

    def forward(self, ids):
        pad = ids.eq(0)
        h = self.enc(self.emb(ids) + self.pos.weight[: ids.shape[1]], src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return self.fc((h * keep).sum(1) / keep.sum(1))


texts, labels = read()
counts = {}
for row in texts:
    for t in row:
        counts[t] = counts.get(t, 0) + 1
stoi = {t: i + 2 for i, t in enumerate(sorted(t for t, c in counts.items() if c > 2 and not keyword.iskeyword(t)))}
batches = bucketed(texts, labels, 32)
model = Classifier(len(stoi) + 2, len(SOURCES))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
step = 0
for epoch in range(6):
    random.shuffle(batches)
    total, hits, n = 0.0, 0, 0
    for x, y in batches:
        out = model(x)
        loss = loss_fn(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(y)
        hits += (out.argmax(1) == y).sum().item()
        n += len(y)
        step += 1
        if step % 15 == 1:
            print(f"  step {step} loss {loss.item():.4f}")
    print(f"epoch {epoch} loss {total / n:.4f} acc {hits / n:.3f}")
print("steps", step)
