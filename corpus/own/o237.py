import torch
from torch import nn
from torch.nn import functional as F

SIZE, PATCH, CLASSES = 24, 6, 8


def render(n, gen):
    yy, xx = torch.meshgrid(torch.arange(SIZE).float(), torch.arange(SIZE).float(), indexing="ij")
    label = torch.randint(0, CLASSES, (n,), generator=gen)
    cy = 7 + 10 * torch.rand(n, 1, 1, generator=gen)
    cx = 7 + 10 * torch.rand(n, 1, 1, generator=gen)
    dy, dx = yy - cy, xx - cx
    r = 4 + 2 * torch.rand(n, 1, 1, generator=gen)
    disk = (dy.square() + dx.square()).sqrt() < r
    ring = disk & ((dy.square() + dx.square()).sqrt() > r - 2)
    square = (dy.abs() < r) & (dx.abs() < r)
    cross = ((dy.abs() < 1.5) & (dx.abs() < r)) | ((dx.abs() < 1.5) & (dy.abs() < r))
    shapes = torch.stack([disk, ring, square, cross], 1)
    picked = shapes[torch.arange(n), label % 4].float()
    sign = torch.where(label < 4, 1.0, -1.0)[:, None, None]
    img = picked * sign + 0.3 * torch.randn(n, SIZE, SIZE, generator=gen)
    return img[:, None], label


class MSA(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        return self.mha(x, x, x, need_weights=False)[0]


def mlp(dim):
    return nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))


class Sublayer(nn.Sequential):
    def forward(self, x):
        return super().forward(x)


class ViT(nn.Module):
    def __init__(self, dim=64, depth=10):
        super().__init__()
        tokens = (SIZE // PATCH) ** 2
        self.patchify = nn.Conv2d(1, dim, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, tokens + 1, dim))
        layers = []
        for _ in range(depth):
            layers += [Sublayer(nn.LayerNorm(dim), MSA(dim)), Sublayer(nn.LayerNorm(dim), mlp(dim))]
        self.body = nn.Sequential(*layers, nn.LayerNorm(dim))
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, img):
        x = self.patchify(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.body(x)[:, 0])


torch.manual_seed(40)
gen = torch.Generator().manual_seed(41)
vit = ViT()
steps = 160
opt = torch.optim.AdamW(vit.parameters(), lr=1e-3, weight_decay=0.05)
sched = torch.optim.lr_scheduler.SequentialLR(
    opt,
    [torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, 20), torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps - 20)],
    milestones=[20])
avg = None
for step in range(steps):
    x, y = render(20, gen)
    out = vit(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
    opt.step()
    sched.step()
    avg = loss.item() if avg is None else 0.9 * avg + 0.1 * loss.item()
    if step % 20 == 0 or step == steps - 1:
        print(f"{step:4d} loss {avg:.4f} acc {(out.argmax(1) == y).float().mean():.2f}")
