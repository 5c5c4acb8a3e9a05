import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(28)


def glyphs(n, size=16):
    """4 kinds of figures at a random place with random contrast sign; class = kind."""
    y = torch.randint(0, 4, (n,))
    c = torch.randint(5, size - 5, (n, 2)).float()
    g = torch.arange(size).float()
    dx = g[None, None, :] - c[:, 0, None, None]
    dy = g[None, :, None] - c[:, 1, None, None]
    box = torch.maximum(dx.abs(), dy.abs())
    figs = torch.stack([
        ((dx.abs() <= 0.5) | (dy.abs() <= 0.5)) & (box <= 4),
        (dx.abs() - dy.abs()).abs() .le(0.5) & (box <= 4),
        (box >= 3.5) & (box <= 4.5),
        (dy.abs() <= 0.5) & (box <= 4) | (dy.abs() == 3) & (box <= 4),
    ], 1).float()
    img = figs[torch.arange(n), y]
    sign = torch.where(torch.rand(n, 1, 1) < 0.5, -1.0, 1.0)
    return (img * sign + 0.3 * torch.randn(n, size, size)).unsqueeze(1), y


class CosineAttention(nn.Module):
    """q and k on the unit sphere, learned temperature per head, plus a learned null key (attention sink)
    whose value is zero, so that a head is able to attend to nothing."""

    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.proj = nn.Linear(d, d)
        self.log_tau = nn.Parameter(torch.full((heads, 1, 1), 2.3))
        self.null = nn.Parameter(torch.randn(heads, 1, d // heads))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        k = torch.cat([self.null.expand(B, -1, -1, -1), k], 2)
        v = torch.cat([v.new_zeros(B, self.h, 1, v.size(-1)), v], 2)
        s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)
        w = (s * self.log_tau.clamp(max=4.6).exp()).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, T, D))


class ViT(nn.Module):
    def __init__(self, d=64, heads=4, depth=3, patch=4, size=16):
        super().__init__()
        self.patch = nn.Conv2d(1, d, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, d) * 0.02)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            self.blocks.append(nn.ModuleList([
                nn.LayerNorm(d), CosineAttention(d, heads), nn.LayerNorm(d),
                nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))]))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 4)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for n1, att, n2, mlp in self.blocks:
            x = x + att(n1(x))
            x = x + mlp(n2(x))
        return self.head(self.norm(x[:, 0]))


vit = ViT()
decay = [p for p in vit.parameters() if p.ndim >= 2]
nodecay = [p for p in vit.parameters() if p.ndim < 2]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": nodecay, "weight_decay": 0.0}], lr=1.5e-3)
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 15)
cos = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)
sched = torch.optim.lr_scheduler.SequentialLR(opt, [warm, cos], [15])
xv, yv = glyphs(400)
for i in range(200):
    x, y = glyphs(48)
    loss = F.cross_entropy(vit(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if i % 20 == 0 or i == 199:
        with torch.no_grad():
            acc = (vit(xv).argmax(1) == yv).float().mean().item()
        print(f"iter {i:3d}: loss {loss.item():.4f} val acc {acc:.3f}")
