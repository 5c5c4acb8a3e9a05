import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def render(n):
    g = torch.Generator().manual_seed(77)
    label = torch.randint(10, (n,), generator=g)
    canvas = torch.randint(0, 60, (n, 3, 20, 20), generator=g).float()
    cx = torch.randint(3, 15, (n,), generator=g)
    cy = torch.randint(3, 15, (n,), generator=g)
    for i in range(n):
        c, kind = int(label[i]) % 3, int(label[i])
        x, y, s = int(cx[i]), int(cy[i]), 3
        if kind < 3:
            canvas[i, c, y - s:y + s, x - s:x + s] += 150
        elif kind < 6:
            canvas[i, c, y - 1:y + 1, x - s:x + s + 2] += 150
        elif kind < 9:
            canvas[i, c, y - s:y + s + 2, x - 1:x + 1] += 150
        else:
            canvas[i, :, y - s:y + s, x - s:x + s] += 120
    return TensorDataset(canvas.clamp(0, 255) / 255 - 0.2, label)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def conv_mixer(dim, depth, kernel=5, patch=2, classes=10):
    return nn.Sequential(
        nn.Conv2d(3, dim, patch, stride=patch), nn.GELU(), nn.BatchNorm2d(dim),
        *[nn.Sequential(
            Residual(nn.Conv2d(dim, dim, kernel, groups=dim, padding="same"), nn.GELU(), nn.BatchNorm2d(dim)),
            nn.Conv2d(dim, dim, 1), nn.GELU(), nn.BatchNorm2d(dim)) for _ in range(depth)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(dim, classes))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = total = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return hits / total


def train(model, train_loader, val_loader, epochs):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    model.train()
    print(f"before training: val acc {evaluate(model, val_loader):.3f}")
    seen = 0
    for epoch in range(epochs):
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if seen % 16 == 0:
                print(f"  epoch {epoch} step {seen} loss {loss.item():.4f}")
            seen += 1
        print(f"epoch {epoch} val acc {evaluate(model, val_loader):.3f} last loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(9)
    train_set, val_set = random_split(render(1800), [1600, 200])
    train(conv_mixer(32, 4), DataLoader(train_set, 32, shuffle=True), DataLoader(val_set, 100), epochs=3)
