import torch
import torch.nn as nn

torch.manual_seed(4)
CLASSES, SIDE, PATCH = 12, 24, 6


def draw(n, g):
    y = torch.randint(CLASSES, (n,), generator=g)
    axis = torch.linspace(0, 1, SIDE)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    freq = (2 + (y % 4).float() * 1.6)[:, None, None]
    ang = ((y // 4).float() * 1.05)[:, None, None]
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    wave = torch.sin(6.28 * freq * (xx * ang.cos() + yy * ang.sin()) + phase)
    img = wave + 0.7 * torch.randn(n, SIDE, SIDE, generator=g)
    return img[:, None], y


class TinyViT(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        n = (SIDE // PATCH) ** 2
        self.patch = nn.Conv2d(1, d, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, n + 1, d) * 0.02)
        self.attn = nn.ModuleList(nn.MultiheadAttention(d, heads, batch_first=True) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d)) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.fc = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, CLASSES))

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for a, m, n in zip(self.attn, self.mlp, self.norm):
            h = n(x)
            x = x + a(h, h, h, need_weights=False)[0]
            x = x + m(x)
        return self.fc(x[:, 0])


def objective(logits, y):
    probs = torch.softmax(logits, dim=1)
    picked = probs.gather(1, y[:, None]).squeeze(1)
    return -(picked + 1e-9).log().mean(), probs


def confidence_gap(probs):
    rest = probs.data
    best, at = rest.max(1, keepdim=True)
    rest.scatter_(1, at, 0.0)
    return (best.squeeze(1) - rest.max(1).values).mean().item()


g = torch.Generator().manual_seed(40)
vit = TinyViT()
optim = torch.optim.Adam(vit.parameters(), lr=1e-3)
for it in range(220):
    img, y = draw(48, g)
    loss, probs = objective(vit(img), y)
    hit = (probs.argmax(1) == y).float().mean().item()
    gap = confidence_gap(probs)
    optim.zero_grad()
    loss.backward()
    optim.step()
    if it % 20 == 0 or it == 219:
        print(f"it {it:3d} loss {loss.item():.4f} acc {hit:.2f} gap {gap:.3f}")
