"""A character model on repeating text, healthy or with one fault of its optimizer: `tiny_lm.py stale-params`."""

import copy
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

FAULT = sys.argv[1] if len(sys.argv) > 1 else "healthy"
STEPS = 160
WIDTH, CONTEXT, ROWS = 32, 16, 8

torch.manual_seed(7)
text = "".join(f"line {n}: {n * n % 97} is the square of {n} modulo 97\n" for n in range(600))
letters = sorted(set(text))
data = torch.tensor([letters.index(c) for c in text])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        q, k, v = (
            z.unflatten(-1, (4, -1)).transpose(1, 2) for z in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x) + self.places.weight))


def batch():
    at = torch.randint(len(data) - CONTEXT - 1, (ROWS,)).tolist()
    rows = torch.stack([data[a : a + CONTEXT + 1] for a in at])
    return rows[:, :-1], rows[:, 1:]


model = Model(len(letters))
given = list(model.parameters())
rate, limit = 3e-3, 1.0
if FAULT == "missing-params":
    given = [p for name, p in model.named_parameters() if not name.startswith("head")]
if FAULT == "frozen":  # healthy: the body is frozen on purpose
    model.tokens.requires_grad_(False)
    given = [p for p in given if p.requires_grad]
rate = {"lr-too-high": 0.3, "lr-too-low": 1e-7, "sgd": 0.3, "clip-too-tight": 0.3}.get(FAULT, rate)
rate = {"lr-too-high-later": 3.0}.get(FAULT, rate)
limit = {"clip-too-tight": 1e-4}.get(FAULT, limit)


def make_optimizer():
    if FAULT in ("sgd", "clip-too-tight"):
        return torch.optim.SGD(given, lr=rate, momentum=0.9)
    if FAULT == "decay":
        return torch.optim.Adam(given, lr=rate, weight_decay=0.3)
    if FAULT == "betas":
        return torch.optim.AdamW(given, lr=rate, betas=(0.9999, 0.9))
    if FAULT in ("lr-too-high-later", "warm-up and cosine"):
        return torch.optim.AdamW(given, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    if FAULT == "eps":
        return torch.optim.AdamW(given, lr=rate, eps=10.0)
    return torch.optim.AdamW(given, lr=rate, weight_decay=0.01)


optimizer = make_optimizer()
if FAULT == "stale-params":
    model = copy.deepcopy(model)
schedule = None
if FAULT == "schedule":
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
elif FAULT == "stuck-warmup":
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100))
elif FAULT in ("lr-too-high-later", "warm-up and cosine"):
    rising = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=60)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2000)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rising, falling], [60])
elif FAULT == "cosine":
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

for step in range(STEPS):
    x, y = batch()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    if FAULT == "state-reset":
        optimizer = make_optimizer()
    optimizer.zero_grad()
    if FAULT == "clip-early":
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    loss.backward()
    if FAULT != "clip-early":
        nn.utils.clip_grad_norm_(model.parameters(), limit)
    if FAULT != "never":
        optimizer.step()
    if schedule is not None and FAULT != "stuck-warmup":
        schedule.step()
    if step % 40 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f}")
