import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
random.seed(70)
torch.manual_seed(70)

CLASSES, LENGTH, VOCAB = 8, 24, 50
prototypes = torch.rand(CLASSES, VOCAB).mul(1.6).softmax(-1)


def make_shard(label, n):
    rows = torch.multinomial(prototypes[label], n * LENGTH, replacement=True).view(n, LENGTH)
    return [(rows[i], label) for i in range(n)]


class ShardedStream(IterableDataset):
    def __init__(self, shards, buffer_size, epochs):
        self.shards, self.buffer_size, self.epochs = shards, buffer_size, epochs

    def records(self):
        for _ in range(self.epochs):
            for shard in self.shards:
                yield from shard

    def __iter__(self):
        buf = []
        for rec in self.records():
            if len(buf) < self.buffer_size:
                buf.append(rec)
                continue
            i = random.randrange(self.buffer_size)
            yield buf[i]
            buf[i] = rec
        random.shuffle(buf)
        yield from buf


class TextClassifier(nn.Module):
    def __init__(self, d=48, heads=4, depth=2):
        super().__init__()
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(1, LENGTH + 1, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.fc = nn.LayerNorm(d), nn.Linear(d, CLASSES)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.tok(x)], 1) + self.pos
        return self.fc(self.norm(self.encoder(h)[:, 0]))


shards = [make_shard(c, 480) for c in range(CLASSES)]
test = [r for c in range(CLASSES) for r in make_shard(c, 40)]
tx, ty = torch.stack([r[0] for r in test]), torch.tensor([r[1] for r in test])

model = TextClassifier()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
stream = ShardedStream(shards, buffer_size=64, epochs=2)
for step, (x, y) in enumerate(DataLoader(stream, batch_size=32)):
    model.train()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 239:
        model.eval()
        with torch.no_grad():
            out = model(tx)
        print(f"step {step} train {loss.item():.3f} test loss {F.cross_entropy(out, ty).item():.3f} acc {(out.argmax(-1) == ty).float().mean().item():.3f}")
