import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(5)

words = " ".join(topics[k] for k in sorted(topics)).lower()[:140000]
chars = sorted(set(words))
vocab = len(chars)
table = {c: i for i, c in enumerate(chars)}
stream = torch.tensor([table[c] for c in words])
LENGTH, MICRO, ACCUM, EPOCHS = 64, 4, 8, 4

chunks = stream[:len(stream) // LENGTH * LENGTH].view(-1, LENGTH)
chunks = chunks[torch.randperm(len(chunks))]
valid, train = chunks[:128], chunks[128:]


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, cos, sin):
        B, T, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=0.05)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(depth)])
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        half = d // heads // 2
        angle = torch.arange(LENGTH)[:, None] * 10000 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids):
        T = ids.shape[1]
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, self.cos[:T], self.sin[:T])
        return self.head(self.norm(x))


def lm_loss(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


model = LM()
ema = copy.deepcopy(model).requires_grad_(False)
LR = 4e-3
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.05)
updates_per_epoch = len(train) // (MICRO * ACCUM)
total_updates = EPOCHS * updates_per_epoch
warmup = 20


def factor(i):
    if i < warmup:
        return (i + 1) / warmup
    done = min(1.0, (i - warmup) / (total_updates - warmup))
    return 0.5 * (1 + math.cos(math.pi * done))


update = 0
for epoch in range(EPOCHS):
    model.train()
    batches = train[torch.randperm(len(train))][:updates_per_epoch * MICRO * ACCUM].split(MICRO)
    running = 0.0
    optimizer.zero_grad()
    for i, batch in enumerate(batches):
        it = (epoch * len(batches) + i) // ACCUM
        for group in optimizer.param_groups:
            group["lr"] = LR * factor(it)
        loss = lm_loss(model, batch) / ACCUM
        loss.backward()
        running += loss.item()
        if (i + 1) % ACCUM == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            update += 1
            with torch.no_grad():
                for e, p in zip(ema.parameters(), model.parameters()):
                    e.lerp_(p, 1 - min(0.95, (1 + update) / (10 + update)))
            if update % 10 == 0:
                print(f"update {update}/{total_updates} loss {running:.4f}", flush=True)
            running = 0.0
    ema.eval()
    with torch.no_grad():
        val = sum(lm_loss(ema, v).item() for v in valid.split(32)) / 4
    print(f"epoch {epoch} valid loss (averaged weights) {val:.4f}", flush=True)
