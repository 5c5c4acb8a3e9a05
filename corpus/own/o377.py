import random
import re
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

LETTERS = {c: i + 1 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz0123456789_")}
WIDTH = 40


class SentencePairs(IterableDataset):
    def __init__(self, sentences, seed):
        self.sentences = sentences
        self.seed = seed

    def noisy(self, rng, words):
        kept = [w for w in words if rng.random() > 0.25] or words
        at = rng.randrange(len(kept))
        kept = kept[at:] + kept[:at]
        return " ".join(kept)

    def vector(self, s):
        ids = [LETTERS.get(c, 0) for c in s[:WIDTH]]
        return torch.tensor(ids + [0] * (WIDTH - len(ids)))

    def __iter__(self):
        rng = random.Random(self.seed)
        while True:
            words = rng.choice(self.sentences)
            yield self.vector(self.noisy(rng, words)), self.vector(self.noisy(rng, words))


class Tower(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(len(LETTERS) + 1, d)
        self.conv = nn.Conv1d(d, d, 3, padding=1)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 1)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        h = F.gelu(self.conv(self.emb(x).transpose(1, 2))).transpose(1, 2)
        h = self.enc(h)
        return F.normalize(self.proj(h.amax(1)), dim=-1)


def info_nce(a, b, scale):
    sim = scale * a @ b.T
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(sim, target) + F.cross_entropy(sim.T, target)), sim


torch.manual_seed(160)
lines = [re.findall(r"[a-z0-9_]+", l.lower()) for t in topics.values() for l in t.splitlines()]
lines = [w for w in lines if 5 <= len(w) <= 9]
random.Random(1).shuffle(lines)
held, lines = lines[:400], lines[400:]
train_loader = DataLoader(SentencePairs(lines, 5), batch_size=48)
test_a, test_b = next(iter(DataLoader(SentencePairs(held, 6), batch_size=128)))

tower = Tower()
optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-3)
for step in range(150):
    a, b = next(iter(train_loader))
    loss, _ = info_nce(tower(a), tower(b), 15.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 15 == 0 or step == 149:
        with torch.no_grad():
            test_loss, sim = info_nce(tower(test_a), tower(test_b), 15.0)
        top1 = (sim.argmax(1) == torch.arange(len(sim))).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} held-out {test_loss.item():.4f} top1 {top1:.3f}")
