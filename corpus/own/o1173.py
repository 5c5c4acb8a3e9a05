import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)

LENGTH, PATCH = 96, 6
CLASSES = 8


def waves(n):
    kind = torch.randint(4, (n,))
    rising = torch.randint(2, (n,))
    t = torch.linspace(0, 1, LENGTH)[None]
    freq = torch.rand(n, 1) * 6 + 4
    phase = (freq * t + torch.rand(n, 1)) % 1.0
    shapes = torch.stack([
        torch.sin(2 * math.pi * phase),
        (phase < 0.5).float() * 2 - 1,
        phase * 2 - 1,
        4 * (phase - 0.5).abs() - 1,
    ])
    x = shapes[kind, torch.arange(n)]
    slope = torch.where(rising[:, None] == 1, t, 1 - t)
    x = x * (0.7 + 0.6 * slope) + 0.2 * torch.randn(n, LENGTH)
    return x.view(n, -1, PATCH), kind * 2 + rising


class Encoder(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.inp = nn.Linear(PATCH, d)
        self.pos = nn.Parameter(torch.randn(LENGTH // PATCH, d) * 0.1)
        self.mask = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, activation="gelu",
                                       batch_first=True, norm_first=True)
            for _ in range(depth)])
        self.norm = nn.LayerNorm(d)

    def forward(self, x, hidden=None):
        h = self.inp(x)
        if hidden is not None:
            h = torch.where(hidden[..., None], self.mask, h)
        h = h + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.norm(h)


class Classifier(nn.Module):
    def __init__(self, encoder, d=64):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(d, CLASSES)
        self.frozen = False

    def freeze(self):
        self.frozen = True
        for p in self.encoder.parameters():
            p.requires_grad = False

    def unfreeze(self):
        for p in self.encoder.parameters():
            p.requires_grad = True

    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            h = self.encoder(x)
        return self.head(h.mean(1))


encoder = Encoder()
decoder = nn.Linear(64, PATCH)
params = list(encoder.parameters()) + list(decoder.parameters())
opt = torch.optim.AdamW(params, lr=1e-3)
for step in range(1, 201):
    x, _ = waves(32)
    hidden = torch.rand(x.shape[:2]) < 0.4
    loss = F.mse_loss(decoder(encoder(x, hidden))[hidden], x[hidden])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(f"reconstruct step {step} loss {loss.item():.4f}", flush=True)

model = Classifier(encoder)
val_x, val_y = waves(1000)


def train(steps, groups, label):
    opt = torch.optim.AdamW(groups, weight_decay=0.01)
    top = [g["lr"] for g in opt.param_groups]
    for step in range(1, steps + 1):
        for g, lr in zip(opt.param_groups, top):
            g["lr"] = lr * min(1.0, step / 30)
        x, y = waves(32)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0:
            print(f"{label} step {step} loss {loss.item():.4f}", flush=True)
        if step % 50 == 0:
            with torch.no_grad():
                out = model(val_x)
            print(f"{label} step {step} val loss {F.cross_entropy(out, val_y).item():.4f} "
                  f"acc {(out.argmax(1) == val_y).float().mean():.3f}", flush=True)


model.freeze()
train(120, [{"params": model.head.parameters(), "lr": 3e-3}], "head")
model.unfreeze()
train(450, [{"params": model.encoder.parameters(), "lr": 1e-3},
            {"params": model.head.parameters(), "lr": 1e-3}], "full")
