import random

import torch
import torch.nn as nn

torch.set_num_threads(1)
random.seed(77)
torch.manual_seed(77)

levels = ["info ", "warn ", "error", "debug"]
verbs = ["start", "close", "retry", "flush"]


def line():
    h, m, s = random.randrange(24), random.randrange(60), random.randrange(60)
    return f"2024-{random.randrange(1, 13):02d}-{random.randrange(1, 29):02d} {h:02d}:{m:02d}:{s:02d} {random.choice(levels)} w{random.randrange(8)} {random.choice(verbs)}"


corpus = [line() for _ in range(4000)]
symbols = ["[PAD]", "[MASK]"] + sorted(set("".join(corpus)))
index = {c: i for i, c in enumerate(symbols)}
ids = torch.tensor([[index[c] for c in s] for s in corpus])
VOCAB, LENGTH = len(symbols), ids.shape[1]


def corrupt(batch, p=0.2):
    labels = batch.clone()
    chosen = torch.rand(batch.shape) < p
    labels[~chosen] = -100
    noisy = batch.clone()
    u = torch.rand(batch.shape)
    noisy[chosen & (u < 0.8)] = index["[MASK]"]
    swap = chosen & (u > 0.9)
    noisy[swap] = torch.randint(2, VOCAB, batch.shape)[swap]
    return noisy, labels


def rotate(x):
    n, half = x.shape[1], x.shape[-1] // 2
    freq = 100.0 ** (-torch.arange(half) / half)
    angle = torch.arange(n)[:, None] * freq
    angle = angle.view(1, n, 1, half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(d, 3 * d)
        self.to_out = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q), rotate(k)
        w = (q @ k.transpose(-2, -1)) / (d // self.heads) ** 0.5
        y = w.softmax(-1) @ v
        return self.to_out(y.transpose(1, 2).reshape(b, t, d))


class EncoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attn_norm, self.ff_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = SelfAttention(d, heads)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.ff(self.ff_norm(x))


class MiniBert(nn.Module):
    def __init__(self, d=64, heads=4, depth=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, d)
        self.layers = nn.Sequential(*[EncoderLayer(d, heads) for _ in range(depth)])
        self.decoder = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, VOCAB))

    def forward(self, x):
        return self.decoder(self.layers(self.embed(x)))


bert = MiniBert()
criterion = nn.CrossEntropyLoss(ignore_index=-100)
optimizer = torch.optim.AdamW(bert.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=180, pct_start=0.1)
for it in range(180):
    noisy, labels = corrupt(ids[torch.randint(len(ids), (24,))])
    loss = criterion(bert(noisy).transpose(1, 2), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if it % 20 == 0 or it == 179:
        print({"iter": it, "mlm_loss": round(loss.item(), 4)})
