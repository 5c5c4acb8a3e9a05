import torch
import torch.nn.functional as F
from torch import nn

SIZE, PATCH = 16, 4


def draw(n, gen):
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    cx, cy = (torch.randint(6, 10, (n, 1, 1), generator=gen) for _ in range(2))
    r = torch.randint(3, 6, (n, 1, 1), generator=gen)
    dx, dy = (xx - cx).abs(), (yy - cy).abs()
    far = torch.maximum(dx, dy)
    kinds = torch.stack([
        ((dx ** 2 + dy ** 2).float().sqrt() - r).abs() < 1.0,
        far == r,
        ((dx == 0) | (dy == 0)) & (far <= r),
        ((dx == dy) & (far <= r)),
        (dx + dy == r),
        ((dy % 3 == 0) & (far <= r)),
    ], dim=1).float()
    y = torch.randint(kinds.size(1), (n,), generator=gen)
    img = kinds[torch.arange(n), y] + 0.15 * torch.randn(n, SIZE, SIZE, generator=gen)
    return img.unsqueeze(1), y


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x):
        return self.fn(self.norm(x))


class SelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ViT(nn.Module):
    def __init__(self, dim=64, depth=6, classes=6):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, PATCH, stride=PATCH)
        self.pos = nn.Parameter(0.1 * torch.randn(1, (SIZE // PATCH) ** 2, dim))
        stages = []
        for _ in range(depth):
            stages.append(PreNorm(dim, SelfAttention(dim)))
            stages.append(PreNorm(dim, nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))))
        self.transformer = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        return self.head(self.transformer(x + self.pos).mean(dim=1))


torch.manual_seed(13)
gen = torch.Generator().manual_seed(14)
vit = ViT()
optimizer = torch.optim.AdamW(vit.parameters(), lr=2e-3, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [
    torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20),
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 160)], [20])
for step in range(180):
    img, y = draw(32, gen)
    logits = vit(img)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(vit.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 15 == 0 or step == 179:
        print(f"[{step}] loss={loss.item():.4f} acc={(logits.argmax(1) == y).float().mean():.2f}")
