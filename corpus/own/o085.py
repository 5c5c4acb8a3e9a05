import itertools
import re
from collections import Counter
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)


class WordData:
    def __init__(self, size=600, ctx=24):
        words = re.findall(r"[a-z_]+|[.,()]", " ".join(topics[k] for k in sorted(topics)).lower())
        common = [w for w, _ in Counter(words).most_common(size - 1)]
        self.lookup = {w: i + 1 for i, w in enumerate(common)}
        self.ids = torch.tensor([self.lookup.get(w, 0) for w in words])
        self.size, self.ctx = size, ctx

    def __iter__(self):
        while True:
            a = torch.randint(len(self.ids) - self.ctx - 1, (8, 1)) + torch.arange(self.ctx + 1)
            yield self.ids[a]


class WordModel(nn.Module):
    def __init__(self, vocab, ctx, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(ctx, d)
        self.layer1 = nn.TransformerEncoderLayer(d, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layer2 = nn.TransformerEncoderLayer(d, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, x):
        mask = torch.triu(torch.ones(x.size(1), x.size(1), dtype=torch.bool), 1)
        h = self.emb(x) + self.pos.weight
        h = self.layer2(self.layer1(h, src_mask=mask), src_mask=mask)
        return self.head(self.norm(h))


class Runner:
    def __init__(self, data, accumulate=2, lr=0.15):
        self.data = iter(data)
        self.accumulate = accumulate
        self.model = WordModel(data.size, data.ctx)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def update(self):
        self.opt.zero_grad()
        seen, total = 0, 0.0
        for window in itertools.islice(self.data, self.accumulate):
            x, y = window[:, :-1], window[:, 1:]
            loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
            loss.backward()
            seen += y.numel()
            total += loss.item()
        for p in self.model.parameters():
            p.grad.div_(seen)
        self.opt.step()
        return total / self.accumulate

    def run(self, updates):
        for u in range(updates):
            loss = self.update()
            if u % 20 == 0 or u == updates - 1:
                print(f"update {u:3d} loss {loss:.4f}")


Runner(WordData()).run(160)
