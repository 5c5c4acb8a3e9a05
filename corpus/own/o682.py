import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
rng = np.random.default_rng(3)

IMG, PATCH, GRID = 24, 6, 3
DIM, DEPTH, HEADS = 48, 2, 4
STEPS, BATCH = 240, 48


def draw(kind, canvas, cy, cx):
    if kind == "plus":
        canvas[cy - 2:cy + 3, cx] += 1.0
        canvas[cy, cx - 2:cx + 3] += 1.0
    else:
        canvas[cy - 2:cy + 3, cx - 2:cx + 3] += 0.6
        canvas[cy - 1:cy + 2, cx - 1:cx + 2] -= 0.6


def render(n):
    cell = IMG // GRID
    x = rng.normal(0, 0.15, size=(n, IMG, IMG)).astype(np.float32)
    y = np.zeros(n, dtype=np.int64)
    for i in range(n):
        a, b = rng.choice(GRID * GRID, size=2, replace=False)
        for kind, c in (("plus", a), ("box", b)):
            cy = (c // GRID) * cell + rng.integers(2, cell - 2)
            cx = (c % GRID) * cell + rng.integers(2, cell - 2)
            draw(kind, x[i], cy, cx)
        y[i] = a
    return torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y)


class SinusoidalPositions(nn.Module):
    def __init__(self, dim, max_len=256, dropout=0.0):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2) * (-math.log(1000.0) / dim))
        pe = torch.zeros(max_len, 1, dim)
        pe[:, 0, 0::2] = torch.sin(pos * div)
        pe[:, 0, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)]
        return self.drop(x)


class ViT(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.patch = nn.Conv2d(1, DIM, PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, DIM) * 0.02)
        self.pos = SinusoidalPositions(DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, classes)

    def forward(self, img):
        tok = self.patch(img).flatten(2).transpose(1, 2)
        tok = torch.cat([self.cls.expand(len(tok), -1, -1), tok], dim=1)
        tok = self.encoder(self.pos(tok))
        return self.head(self.norm(tok[:, 0]))


def main():
    train_x, train_y = render(4800)
    test_x, test_y = render(512)
    model = ViT(GRID * GRID)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=STEPS, pct_start=0.15)
    order = torch.randperm(len(train_x))
    for step in range(STEPS):
        if (step * BATCH) % len(train_x) == 0:
            order = torch.randperm(len(train_x))
        lo = (step * BATCH) % len(train_x)
        idx = order[lo:lo + BATCH]
        model.train()
        loss = F.cross_entropy(model(train_x[idx]), train_y[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == STEPS - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        out = model(test_x[:256])
        acc = (out.argmax(-1) == test_y[:256]).float().mean().item()
    print(f"test accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
