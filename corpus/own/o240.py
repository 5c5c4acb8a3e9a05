import inspect
import random
import textwrap, argparse, tarfile, zipfile, pdb, difflib
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(9)
torch.manual_seed(9)


def collect():
    texts, labels = [], []
    prose = [l.strip() for v in topics.values() for l in v.splitlines() if len(l.strip()) > 15]
    code = [l.strip() for m in (argparse, tarfile, zipfile) for l in inspect.getsource(m).splitlines() if len(l.strip()) > 15]
    code2 = [l.strip().upper() for m in (textwrap, pdb, difflib) for l in inspect.getsource(m).splitlines() if len(l.strip()) > 15]
    for label, pool in enumerate((prose, code, code2)):
        for line in random.sample(pool, 1000):
            texts.append(line[:64].encode("ascii", "replace"))
            labels.append(label)
    both = list(zip(texts, labels))
    random.shuffle(both)
    return [t for t, _ in both], [y for _, y in both]


class BucketedLines:
    def __init__(self, texts, labels, batch_size):
        self.texts = sorted(texts, key=len)
        self.labels = labels
        self.batch_size = batch_size
        self.order = list(range(0, len(texts) - batch_size + 1, batch_size))

    def __iter__(self):
        random.shuffle(self.order)
        for at in self.order:
            chunk = self.texts[at:at + self.batch_size]
            width = len(chunk[-1])
            ids = torch.tensor([list(t) + [0] * (width - len(t)) for t in chunk])
            yield ids, torch.tensor(self.labels[at:at + self.batch_size])


class LineNet(nn.Module):
    def __init__(self, d=48, classes=3):
        super().__init__()
        self.emb = nn.Embedding(128, d, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(d, d, k, padding=k // 2) for k in (3, 5))
        self.query = nn.Parameter(torch.randn(1, 1, 2 * d) * 0.1)
        self.pool = nn.MultiheadAttention(2 * d, 4, batch_first=True)
        self.out = nn.Sequential(nn.LayerNorm(2 * d), nn.Linear(2 * d, classes))

    def forward(self, ids):
        x = self.emb(ids).transpose(1, 2)
        x = torch.cat([F.relu(c(x)) for c in self.convs], 1).transpose(1, 2)
        h, _ = self.pool(self.query.expand(len(ids), -1, -1), x, x, key_padding_mask=ids == 0, need_weights=False)
        return self.out(h[:, 0])


texts, labels = collect()
loader = BucketedLines(texts, labels, 32)
net = LineNet()
opt = torch.optim.Adam(net.parameters(), lr=1.5e-3)
for epoch in range(3):
    losses, hits, n = [], 0, 0
    for i, (ids, y) in enumerate(loader):
        logits = net(ids)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        hits += (logits.argmax(1) == y).sum().item()
        n += len(y)
        if i % 25 == 0:
            print(f"epoch {epoch} batch {i:3d} loss {sum(losses[-25:]) / len(losses[-25:]):.4f}")
    print(f"epoch {epoch} mean loss {sum(losses) / len(losses):.4f} accuracy {hits / n:.3f}")
