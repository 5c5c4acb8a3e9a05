import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
SIZE, PATCH, CLASSES = 20, 4, 6


def pictures(n):
    y = torch.randint(CLASSES, (n,))
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    cx, cy = (torch.rand(n, 1, 1) * 8 + 6 for _ in range(2))
    r = torch.rand(n, 1, 1) * 2 + 3.5
    dx, dy = xx - cx, yy - cy
    dist = (dx**2 + dy**2).sqrt()
    shapes = torch.stack(
        [
            dist < r,
            (dist < r + 0.5) & (dist > r - 1.5),
            (dx.abs() < r) & (dy.abs() < r) & ~((dx.abs() < r - 1.5) & (dy.abs() < r - 1.5)),
            ((dx.abs() < 1) | (dy.abs() < 1)) & (dist < r + 1),
            ((dx - dy).abs() < 1.5) & (dist < r + 1),
            (dx.abs() < r) & (dy.abs() < r) & (yy % 3 == 0),
        ]
    ).float()
    mono = shapes[y, torch.arange(n)]
    color = torch.rand(n, 3, 1, 1) * 0.6 + 0.4
    back = torch.rand(n, 3, 1, 1) * 0.3
    img = back + (color - back) * mono[:, None] + 0.12 * torch.randn(n, 3, SIZE, SIZE)
    return (img - 0.3) / 0.3, y


class Block(nn.Module):
    def __init__(self, d, heads, drop):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))
        self.drop = drop

    def path(self, x):
        if not self.training or self.drop == 0:
            return x
        keep = (torch.rand(len(x), 1, 1) > self.drop).float()
        return x * keep / (1 - self.drop)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.path(self.attn(h, h, h, need_weights=False)[0])
        return x + self.path(self.ff(self.n2(x)))


class ViT(nn.Module):
    def __init__(self, d=64, depth=3):
        super().__init__()
        self.embed = nn.Conv2d(3, d, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, d) * 0.02)
        self.blocks = nn.ModuleList([Block(d, 4, 0.1 * i / (depth - 1)) for i in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, CLASSES)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, img):
        x = self.embed(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x[:, 0]))


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(3)
    dx, dy = (int(v) for v in torch.randint(-1, 2, (2,)))
    return x.roll((dx, dy), (2, 3))


def mixup(x, y, alpha=0.4):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    perm = torch.randperm(len(x))
    one = F.one_hot(y, CLASSES).float()
    target = lam * one + (1 - lam) * one[perm]
    return lam * x + (1 - lam) * x[perm], target * 0.9 + 0.1 / CLASSES


train_x, train_y = pictures(2400)
test_x, test_y = pictures(800)
model = ViT()
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.05)
EPOCHS, B = 7, 48
total = EPOCHS * (len(train_x) // B)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1.5e-3, total_steps=total, pct_start=0.1)
step = 0
for epoch in range(EPOCHS):
    model.train()
    for idx in torch.randperm(len(train_x))[: len(train_x) // B * B].split(B):
        x, target = mixup(augment(train_x[idx]), train_y[idx])
        loss = F.cross_entropy(model(x), target)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        out = model(test_x)
    print(
        f"epoch {epoch} test loss {F.cross_entropy(out, test_y).item():.4f} "
        f"acc {(out.argmax(1) == test_y).float().mean():.3f}",
        flush=True,
    )
