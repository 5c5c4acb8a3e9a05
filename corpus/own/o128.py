import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from pydoc_data.topics import topics

torch.set_num_threads(1)
random.seed(48)
torch.manual_seed(48)


class Vocab:
    specials = ["<unk>", "<pad>", "<s>", "</s>"]

    def __init__(self, texts, min_count=20):
        counts = {}
        for t in texts:
            for c in t:
                counts[c] = counts.get(c, 0) + 1
        self.itos = self.specials + sorted(c for c, n in counts.items() if n >= min_count)
        self.stoi = {c: i for i, c in enumerate(self.itos)}
        self.unk, self.pad, self.bos, self.eos = range(4)

    def encode(self, s):
        return torch.tensor([self.bos] + [self.stoi.get(c, self.unk) for c in s] + [self.eos])

    def __len__(self):
        return len(self.itos)


paragraphs = [
    p.strip() for k in sorted(topics) for p in topics[k].split("\n") if 3 <= len(p.strip()) <= 76
]
random.shuffle(paragraphs)
short = [p for p in paragraphs if len(p) < 15]
long = [p for p in paragraphs if len(p) >= 60]
texts = short[:2200] + long[:440]
random.shuffle(texts)
vocab = Vocab(texts)
MAX = 80


def collate(batch):
    seqs = [vocab.encode(s) for s in batch]
    inputs = pad_sequence([s[:-1] for s in seqs], batch_first=True, padding_value=vocab.pad)
    labels = pad_sequence([s[1:] for s in seqs], batch_first=True)
    return inputs, labels


class CausalLM(nn.Module):
    def __init__(self, n, d=64, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(n, d, padding_idx=vocab.pad)
        self.pos = nn.Embedding(MAX, d)
        layer = nn.TransformerEncoderLayer(
            d, heads, 2 * d, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(
            layer, depth, norm=nn.LayerNorm(d), enable_nested_tensor=False
        )
        self.head = nn.Linear(d, n)

    def forward(self, x):
        t = x.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).triu(1)
        return self.head(self.body(self.tok(x) + self.pos.weight[:t], mask=causal))


@torch.no_grad()
def heldout(model, sample):
    total = count = 0
    for s in sample:
        ids = vocab.encode(s)[None]
        total += F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:], reduction="sum").item()
        count += ids.size(1) - 1
    return total / count


loader = DataLoader(texts[200:], batch_size=16, shuffle=True, collate_fn=collate, drop_last=True)
model = CausalLM(len(vocab))
criterion = nn.CrossEntropyLoss(ignore_index=vocab.pad)
opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for step, (x, y) in enumerate(loader):
    loss = criterion(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    if step % 20 == 0 or step == len(loader) - 1:
        print(f"step {step} train {loss.item():.4f} held-out loss {heldout(model, texts[:40]):.4f}")
