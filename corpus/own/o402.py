import random
import re
from collections import Counter

import torch
import torch.nn as nn
from pydoc_data.topics import topics

random.seed(5)
torch.manual_seed(5)
STOP = set("the a an of to in is and or that it as for be by on with are this if not from at which can".split())


def words(line):
    return re.findall(r"[a-z_]+", line.lower())


def build():
    keys = [k for k in sorted(topics) if len(topics[k]) > 9000][:6]
    rows = []
    for label, k in enumerate(keys):
        for line in topics[k].splitlines():
            w = words(line)
            if w:
                rows.append((w, label))
    random.shuffle(rows)
    count = Counter(w for ws, _ in rows for w in ws if w not in STOP)
    vocab = {w: i + 1 for i, (w, c) in enumerate(count.most_common()) if c >= 2}
    return rows, vocab, len(keys)


class LineClassifier(nn.Module):
    def __init__(self, vocab, classes, d=64):
        super().__init__()
        self.embed = nn.Embedding(vocab + 1, d, padding_idx=0)
        self.pos = nn.Embedding(24, d)
        layer = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, classes)

    def forward(self, ids):
        keep = (ids != 0).float()
        x = self.embed(ids) + self.pos(torch.arange(ids.size(1)))
        x = self.encoder(x, src_key_padding_mask=(1 - keep) * -1e4)
        pooled = (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)
        return self.out(pooled)


def encode(batch, vocab, length=24):
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    for i, (ws, _) in enumerate(batch):
        kept = [vocab[w] for w in ws if w in vocab][:length]
        ids[i, :len(kept)] = torch.tensor(kept, dtype=torch.long)
    return ids, torch.tensor([y for _, y in batch])


rows, vocab, classes = build()
model = LineClassifier(len(vocab), classes)
optimizer = torch.optim.Adam(model.parameters(), lr=7e-4)
loss_fn = nn.CrossEntropyLoss()
print(f"{len(rows)} lines, {len(vocab)} words, {classes} topics")
step, size, limit = 0, 24, 160
while step < limit:
    random.shuffle(rows)
    for start in range(0, len(rows) - size, size):
        ids, y = encode(rows[start:start + size], vocab)
        logits = model(ids)
        loss = loss_fn(logits, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0 or step == limit - 1:
            acc = (logits.argmax(1) == y).float().mean().item()
            print(f"[{step}] loss: {loss.item():.4f} acc: {acc:.2f}")
        step += 1
        if step == limit:
            break
