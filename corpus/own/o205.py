import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
CLASSES = 6


def draw(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    cx, cy = (6 + 12 * torch.rand(n, 1, 1, generator=g) for _ in range(2))
    r = 3 + 3 * torch.rand(n, 1, 1, generator=g)
    dx, dy = (xx - cx).abs(), (yy - cy).abs()
    shapes = torch.stack([
        (dx ** 2 + dy ** 2 < r ** 2),
        (torch.maximum(dx, dy) < r),
        (dx + dy < r),
        (torch.minimum(dx, dy) < 1) & (torch.maximum(dx, dy) < r),
        ((dx ** 2 + dy ** 2 < r ** 2) & (dx ** 2 + dy ** 2 > (r - 2) ** 2)),
        ((dx - dy).abs() < 1) & (torch.maximum(dx, dy) < r)]).float()
    img = shapes[y, torch.arange(n)]
    tint = 60 + 60 * torch.rand(n, 3, 1, 1, generator=g)
    base = 60 + 60 * torch.rand(n, 3, 1, 1, generator=g)
    x = base + tint * img.unsqueeze(1) + 12 * torch.randn(n, 3, 24, 24, generator=g)
    return TensorDataset(x.clamp(0, 255), y)


class ConvStemViT(nn.Module):
    def __init__(self, d=48, heads=4, depth=2):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, d, 1, bias=False), nn.BatchNorm2d(d))
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 37, d) * 0.02)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(d, heads, 2 * d, 0.0, F.gelu, batch_first=True, norm_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x[:, 0]))


@torch.no_grad()
def accuracy(net, loader):
    net.eval()
    right = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


train_dl = DataLoader(draw(1600, 1), batch_size=32, shuffle=True, drop_last=True)
test_dl = DataLoader(draw(300, 2), batch_size=100)
net = ConvStemViT()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02)
print(f"before training: accuracy {accuracy(net, test_dl):.3f}")
for epoch in range(5):
    running = 0.0
    for i, (x, y) in enumerate(train_dl):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
        if i % 25 == 24:
            print(f"epoch {epoch} batch {i + 1} loss {running / 25:.4f}")
            running = 0.0
    print(f"epoch {epoch} accuracy {accuracy(net, test_dl):.3f}")
