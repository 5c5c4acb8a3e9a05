import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CYCLE, CYCLES, WARM = 75, 4, 8
PEAK, FLOOR = 3e-3, 1e-5


def digits(n, gen):
    seg = torch.tensor([
        [1, 1, 1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 1, 0], [1, 0, 1, 1, 1, 0, 1], [1, 0, 1, 1, 0, 1, 1],
        [0, 1, 1, 1, 0, 1, 0], [1, 1, 0, 1, 0, 1, 1], [1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1, 1]]).float()
    y = torch.randint(10, (n,), generator=gen)
    img = torch.zeros(n, 16, 16)
    on = seg[y]
    for k, (r, c, h, w) in enumerate([(1, 3, 1, 6), (2, 2, 4, 1), (2, 9, 4, 1), (6, 3, 1, 6), (7, 2, 4, 1), (7, 9, 4, 1), (11, 3, 1, 6)]):
        img[:, r:r + h, c:c + w] += on[:, k, None, None]
    dy, dx = torch.randint(0, 3, (2, n), generator=gen)
    rows = (torch.arange(16)[None] - dy[:, None]) % 16
    cols = (torch.arange(16)[None] - dx[:, None]) % 16
    img = img[torch.arange(n)[:, None, None], rows[:, :, None], cols[:, None, :]]
    return img + 0.25 * torch.randn(img.shape, generator=gen), y


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.a(x)
        x = x + self.att(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.b(x))


class ViT(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.embed = nn.Conv2d(1, d, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, d))
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 10)

    def forward(self, img):
        x = self.embed(img[:, None]).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for blk in self.blocks:
            x = checkpoint(blk, x, use_reentrant=True) if self.training else blk(x)
        return self.head(self.norm(x)[:, 0])


def lr_at(step):
    cycle, k = divmod(step, CYCLE)
    peak = PEAK * 0.85 ** cycle
    if k < WARM:
        return FLOOR + (peak - FLOOR) * (k + 1) / WARM
    return FLOOR + 0.5 * (peak - FLOOR) * (1 + math.cos(math.pi * (k - WARM) / (CYCLE - WARM)))


torch.manual_seed(0)
gen = torch.Generator().manual_seed(0)
net = ViT()
opt = torch.optim.AdamW(net.parameters(), lr=PEAK, weight_decay=0.05)
vx, vy = digits(400, torch.Generator().manual_seed(77))
for step in range(CYCLE * CYCLES):
    for group in opt.param_groups:
        group["lr"] = lr_at(step)
    x, y = digits(48, gen)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 0:
        print(f"step {step:3d} lr {lr_at(step):.2e} loss {loss.item():.4f}")
    if (step + 1) % CYCLE == 0:
        net.eval()
        with torch.no_grad():
            acc = (net(vx).argmax(1) == vy).float().mean().item()
        net.train()
        print(f"snapshot after step {step} accuracy {acc:.4f}")
