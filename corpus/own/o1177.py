import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

torch.manual_seed(11)
random.seed(11)

VOCAB, CLASSES, PAD, MASK = 60, 8, 0, 1
profiles = torch.distributions.Dirichlet(torch.full((VOCAB - 2,), 0.6)).sample((CLASSES,))
tempo = [2, 3, 4, 5]


class Events(Dataset):
    def __init__(self, n, augment):
        self.augment = augment
        self.items = []
        for _ in range(n):
            topic, beat = random.randrange(CLASSES), random.randrange(len(tempo))
            length = random.randint(10, 60)
            ids = torch.multinomial(profiles[topic], length, replacement=True) + 2
            ids[::tempo[beat]] = 2
            self.items.append((ids, topic, beat))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        ids, topic, beat = self.items[i]
        if self.augment:
            ids = torch.where(torch.rand(len(ids)) < 0.05, torch.full_like(ids, MASK), ids)
        return ids, topic, beat


class BucketSampler(Sampler):
    def __init__(self, dataset, batch, pool=20):
        self.lengths = [len(x[0]) for x in dataset.items]
        self.batch, self.pool = batch, pool

    def __len__(self):
        return len(self.lengths) // self.batch

    def __iter__(self):
        perm = torch.randperm(len(self.lengths)).tolist()
        size = self.batch * self.pool
        batches = []
        for i in range(0, len(perm), size):
            chunk = sorted(perm[i:i + size], key=lambda j: self.lengths[j] // 8)
            batches += [chunk[k:k + self.batch] for k in range(0, len(chunk), self.batch)]
        random.shuffle(batches)
        return iter(batches)


def collate(items):
    lengths = torch.tensor([len(ids) for ids, _, _ in items])
    lengths, order = lengths.sort(descending=True)
    ids = nn.utils.rnn.pad_sequence([items[i][0] for i in order.tolist()], batch_first=True, padding_value=PAD)
    topic = torch.tensor([t for _, t, _ in items])[order]
    beat = torch.tensor([b for _, _, b in items])[order]
    return ids, lengths, topic, beat


class TwoHeads(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Embedding(64, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")
        self.enc = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.topic = nn.Linear(d, CLASSES)
        self.beat = nn.Linear(d, len(tempo))

    def forward(self, ids, lengths):
        T = ids.shape[1]
        pad = torch.arange(T)[None] >= lengths[:, None]
        x = self.enc(self.tok(ids) + self.pos(torch.arange(T)), src_key_padding_mask=pad)
        x = x.masked_fill(pad[..., None], 0).sum(1) / lengths[:, None]
        return self.topic(x), self.beat(x)


train = Events(1600, True)
valid = Events(480, False)
train_loader = DataLoader(train, batch_sampler=BucketSampler(train, 32), collate_fn=collate)
valid_loader = DataLoader(valid, batch_sampler=BucketSampler(valid, 32), collate_fn=collate)

model = TwoHeads()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 40))
best, patience, step = float("inf"), 0, 0
for epoch in range(8):
    model.train()
    for ids, lengths, topic, beat in train_loader:
        a, b = model(ids, lengths)
        loss = F.cross_entropy(a, topic) + 0.5 * F.cross_entropy(b, beat)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.eval()
    total = right = count = 0
    with torch.no_grad():
        for ids, lengths, topic, beat in valid_loader:
            a, b = model(ids, lengths)
            total += (F.cross_entropy(a, topic) + 0.5 * F.cross_entropy(b, beat)).item() * len(ids)
            right += (a.argmax(1) == topic).sum().item()
            count += len(ids)
    print(f"epoch {epoch} valid loss {total / count:.4f} topic acc {right / count:.3f}", flush=True)
    patience = 0 if total < best else patience + 1
    best = min(best, total)
    if patience == 8:
        break
