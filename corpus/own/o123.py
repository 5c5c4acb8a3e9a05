import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(55)

CLASSES, SIZE, PATCH = 6, 16, 4
masks = (torch.rand(CLASSES, SIZE, SIZE) < 0.35).float()


def images(n):
    y = torch.randint(CLASSES, (n,))
    x = masks[y] + 0.7 * torch.randn(n, SIZE, SIZE)
    shift = torch.randint(-1, 2, (n,))
    x = torch.stack([torch.roll(a, s.item(), 1) for a, s in zip(x, shift)])
    return x, y


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = (torch.rand(x.size(0), 1, 1) >= self.p).to(x.dtype)
        return x * keep / (1 - self.p)


class ViTBlock(nn.Module):
    def __init__(self, d, heads, p):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True, dropout=0.1)
        self.mlp = nn.Sequential(
            nn.Linear(d, 3 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(3 * d, d)
        )
        self.g1, self.g2 = nn.Parameter(torch.full((d,), 0.1)), nn.Parameter(torch.full((d,), 0.1))
        self.path = DropPath(p)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.path(self.g1 * self.attn(h, h, h, need_weights=False)[0])
        return x + self.path(self.g2 * self.mlp(self.n2(x)))


class ViT(nn.Module):
    def __init__(self, d=48, heads=4, depth=4, drop_path=0.3):
        super().__init__()
        self.patch = nn.Linear(PATCH * PATCH, d)
        n = (SIZE // PATCH) ** 2
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, n + 1, d) * 0.02)
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.blocks = nn.ModuleList(ViTBlock(d, heads, r) for r in rates)
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, CLASSES)
        nn.init.zeros_(self.fc.weight)

    def forward(self, x):
        x = x.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(x.size(0), -1, PATCH * PATCH)
        h = self.patch(x)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.pos
        for b in self.blocks:
            h = b(h)
        return self.fc(self.norm(h[:, 0]))


model = ViT()
ema = copy.deepcopy(model).requires_grad_(False).eval()
criterion = nn.CrossEntropyLoss(label_smoothing=0.15)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 220)
vx, vy = images(300)
for step in range(220):
    x, y = images(32)
    loss = criterion(model(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 0.03)
    if step % 20 == 0 or step == 219:
        with torch.no_grad():
            e = ema(vx)
        print(
            f"step {step} loss {loss.item():.4f} ema nll {F.cross_entropy(e, vy).item():.4f} ema acc {(e.argmax(-1) == vy).float().mean().item():.3f}"
        )
