from itertools import chain

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)
VOCAB, QLEN, DLEN, TOPICS = 300, 6, 18, 40

gen = torch.Generator().manual_seed(4)
topic_words = torch.stack([torch.randperm(VOCAB, generator=gen)[:24] for _ in range(TOPICS * 8)])
lexicon = torch.randperm(VOCAB, generator=gen)


def sample_pairs(n):
    rows = topic_words[torch.randint(len(topic_words), (n,), generator=gen)]
    docs = rows.gather(1, torch.randint(24, (n, DLEN), generator=gen))
    queries = lexicon[docs.gather(1, torch.randint(DLEN, (n, QLEN), generator=gen))]
    return queries, docs


class Tower(nn.Module):
    def __init__(self, length, width=64, out=32):
        super().__init__()
        self.words = nn.Embedding(VOCAB, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.mix = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm2 = nn.LayerNorm(width)
        self.project = nn.Linear(width, out)

    def forward(self, ids):
        x = self.words(ids) + self.places
        x = self.norm1(x + self.mix(x, x, x, need_weights=False)[0])
        x = self.norm2(x + self.ffn(x))
        return F.normalize(self.project(x.mean(1)), dim=-1)


query_tower, doc_tower = Tower(QLEN), Tower(DLEN)
log_temp = nn.Parameter(torch.tensor(2.3))

params = chain(query_tower.parameters(), doc_tower.parameters(), [log_temp])
optimizer = torch.optim.Adam(params, lr=1e-3)

for it in range(241):
    queries, docs = sample_pairs(64)
    sims = query_tower(queries) @ doc_tower(docs).t() * log_temp.exp().clamp(max=50.0)
    labels = torch.arange(len(sims))
    loss = (F.cross_entropy(sims, labels) + F.cross_entropy(sims.t(), labels)) / 2
    for p in params:
        p.grad = None
    loss.backward()
    optimizer.step()
    if it % 20 == 0:
        top1 = (sims.argmax(1) == labels).float().mean()
        print(f"iter {it:3d}  nce {loss.item():.4f}  r@1 {top1:.3f}  scale {log_temp.exp().item():.2f}")
