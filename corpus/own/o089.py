import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(60)

MAX_NORM = 2e-3


def shapes(n, size=16):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    label = torch.randint(4, (n,))
    cx, cy = torch.randint(5, 11, (2, n, 1, 1))
    r = torch.randint(3, 6, (n, 1, 1))
    dx, dy = (xx - cx).abs(), (yy - cy).abs()
    disc = (dx ** 2 + dy ** 2) <= r ** 2
    box = torch.maximum(dx, dy) <= r
    cross = (torch.minimum(dx, dy) == 0) & (torch.maximum(dx, dy) <= r)
    ring = box & (torch.maximum(dx, dy) == r)
    img = torch.stack([disc, box, cross, ring], 1)[torch.arange(n), label].float()
    return img + 0.2 * torch.randn(n, size, size), label


class TinyViT(nn.Module):
    def __init__(self, patch=4, dim=64, depth=2, heads=4, classes=4):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, 17, dim) * 0.1)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        p = self.patch
        x = img.unfold(1, p, p).unfold(2, p, p).flatten(3).flatten(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x[:, 0]))


@torch.no_grad()
def limit_gradients(params, max_norm):
    params = [p for p in params if p.grad is not None]
    total = torch.sqrt(sum(p.grad.pow(2).sum() for p in params))
    factor = max_norm / (total + 1e-6)
    if factor < 1:
        for p in params:
            p.grad.mul_(factor)
    return total.item()


vit = TinyViT()
optimizer = torch.optim.SGD(vit.parameters(), lr=0.1, momentum=0.9)
for step in range(200):
    images, labels = shapes(32)
    logits = vit(images)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    limit_gradients(vit.parameters(), MAX_NORM)
    optimizer.step()
    if step % 20 == 0 or step == 199:
        acc = (logits.argmax(1) == labels).float().mean().item()
        print(f"[{step:3d}/200] loss: {loss.item():.4f} acc: {acc:.2f}")
