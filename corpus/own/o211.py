import torch
from torch import nn
from torch.nn import functional as F


class PatchEmbed(nn.Conv2d):
    def __init__(self, channels, d, patch):
        super().__init__(channels, d, patch, patch)

    def forward(self, x):
        return super().forward(x).flatten(2).mT


class ViTBlock(nn.Module):
    def __init__(self, d, heads, ratio=2):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, ratio * d), nn.GELU(), nn.Linear(ratio * d, d))

    def forward(self, x):
        y = self.n1(x)
        x = x + self.att(y, y, y, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class ViT(nn.Module):
    def __init__(self, size=20, patch=4, d=64, depth=2, heads=4, classes=30):
        super().__init__()
        n = (size // patch) ** 2
        self.embed = PatchEmbed(1, d, patch)
        self.pos = nn.Parameter(torch.empty(1, n, d).normal_(std=0.02))
        self.blocks = nn.Sequential(*[ViTBlock(d, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Sequential(nn.Linear(d, classes), nn.Softmax(dim=-1))

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x) + self.pos)).mean(1))


class Glyphs:
    def __init__(self, classes=30, size=20):
        g = torch.Generator().manual_seed(99)
        low = torch.randn(classes, 1, 5, 5, generator=g)
        self.proto = F.interpolate(low, size=size, mode="bilinear")
        self.classes = classes

    def __call__(self, n):
        y = torch.randint(self.classes, (n,))
        x = self.proto[y]
        sx, sy = torch.randint(-1, 2, (2,)).tolist()
        x = torch.roll(x, (sy, sx), (2, 3))
        return x + 0.7 * torch.randn_like(x), y


def mixup(x, y, classes, alpha=0.2):
    lam = float(torch.distributions.Beta(alpha, alpha).sample())
    perm = torch.randperm(len(x))
    t = F.one_hot(y, classes).float()
    return lam * x + (1 - lam) * x[perm], lam * t + (1 - lam) * t[perm]


def train(steps=260, batch=48):
    torch.manual_seed(8)
    data, net = Glyphs(), ViT()
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for i in range(steps):
        x, y = data(batch)
        x, t = mixup(x, y, data.classes)
        loss = criterion(net(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
        plan.step()
        if i % 20 == 0 or i == steps - 1:
            with torch.no_grad():
                xv, yv = data(200)
                top1 = (net(xv).argmax(1) == yv).float().mean().item()
            print(f"{i:4d} loss {loss.item():.4f} top1 {top1:.3f}")


train()
