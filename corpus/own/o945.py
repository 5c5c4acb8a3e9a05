import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class TileDataset(Dataset):
    names = ["water", "forest", "crop_rows", "urban", "river", "bare", "orchard", "road"]

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        yy, xx = torch.meshgrid(torch.arange(24.), torch.arange(24.), indexing="ij")
        self.labels = torch.randint(0, len(self.names), (n,), generator=g)
        tiles = []
        for k in self.labels.tolist():
            r = torch.rand(4, generator=g)
            ang = r[0] * 3.1416
            u = xx * torch.cos(ang) + yy * torch.sin(ang)
            w = -xx * torch.sin(ang) + yy * torch.cos(ang)
            base = torch.randn(3, 1, 1, generator=g) * 0.3
            if k == 0:
                p = 0.15 * torch.sin(0.25 * u + 6 * r[1])
            elif k == 1:
                p = nn.functional.interpolate(torch.randn(1, 1, 12, 12, generator=g), size=24)[0, 0] * 0.6
            elif k == 2:
                p = torch.sign(torch.sin((1.2 + 0.3 * r[1]) * u)) * 0.6
            elif k == 3:
                p = torch.sign(torch.sin(0.9 * u + 6 * r[1])) * torch.sign(torch.sin(0.9 * w)) * 0.6
            elif k == 4:
                p = 1.2 * torch.exp(-((u - u.mean() - 2.5 * torch.sin(0.4 * w)) / 2.0) ** 2)
            elif k == 5:
                p = torch.randn(24, 24, generator=g) * 0.15
            elif k == 6:
                p = torch.sin(1.3 * u) * torch.sin(1.3 * w)
            else:
                p = 1.2 * torch.exp(-((u - u.mean() + 4 * (r[1] - 0.5)) / 1.3) ** 2)
            tint = torch.tensor([1.0, 0.8, 0.6]).view(3, 1, 1)
            tiles.append(base + p * tint + 0.45 * torch.randn(3, 24, 24, generator=g))
        self.tiles = torch.stack(tiles)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.tiles[i], self.labels[i]


class TinyViT(nn.Module):
    def __init__(self, dim=48, depth=2, heads=4, patch=4, classes=8):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        n = (24 // patch) ** 2
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 2, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        z = self.patch(img).flatten(2).transpose(1, 2)
        z = torch.cat([self.cls.expand(len(z), -1, -1), z], 1) + self.pos
        return self.head(self.enc(z)[:, 0])


def train_epoch(model, loader, optimizer, scheduler, criterion):
    model.train()
    total = 0.0
    for img, lab in loader:
        optimizer.zero_grad()
        loss = criterion(model(img), lab)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(lab)
    scheduler.step()
    return total / len(loader.dataset)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    hits = sum((model(img).argmax(-1) == lab).sum().item() for img, lab in loader)
    return hits / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(3)
    train_dl = DataLoader(TileDataset(1280, 1), batch_size=32, shuffle=True)
    val_dl = DataLoader(TileDataset(480, 2), batch_size=160)
    net = TinyViT()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    sched = StepLR(opt, step_size=3, gamma=0.5)
    ce = nn.CrossEntropyLoss()
    for epoch in range(8):
        tr = train_epoch(net, train_dl, opt, sched, ce)
        print(f"[{epoch:02d}] train loss {tr:.4f}  val acc {validate(net, val_dl):.4f}")
    print("final validation accuracy", round(validate(net, val_dl), 4))
