import torch
import torch.nn as nn

PLAN = [16, 16, "M", 32, 32, "M", 64, 64, "M"]
KINDS = 4


def shapes(n, gen):
    y = torch.randint(KINDS, (n,), generator=gen)
    cx = 5 + 6 * torch.rand(n, 1, 1, generator=gen)
    cy = 5 + 6 * torch.rand(n, 1, 1, generator=gen)
    r = 3 + 2 * torch.rand(n, 1, 1, generator=gen)
    gy, gx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    dx, dy = (gx - cx).abs(), (gy - cy).abs()
    masks = torch.stack([
        (dx * dx + dy * dy < r * r),
        (torch.maximum(dx, dy) < r) & (torch.maximum(dx, dy) > r - 1.5),
        ((dx < 1) & (dy < r)) | ((dy < 1) & (dx < r)),
        (dx - dy).abs().lt(1) & (dx < r),
    ], 1)
    pick = masks[torch.arange(n), y].float().unsqueeze(1)
    colour = 0.5 + torch.rand(n, 3, 1, 1, generator=gen)
    img = pick * colour + 0.25 * torch.randn(n, 3, 16, 16, generator=gen)
    return (img - 0.15) / 0.45, y


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c = [], 3
        for item in PLAN:
            if item == "M":
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(c, item, 3, padding=1), nn.LeakyReLU(0.1)]
                c = item
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(c * 4, 96), nn.LeakyReLU(0.1), nn.Linear(96, KINDS))
        self._initialize_weights()

    def _initialize_weights(self):
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.normal_(m.weight, 0, 0.01)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.classifier(self.features(x))


def main(iters=240, batch=32):
    torch.manual_seed(9)
    gen = torch.Generator().manual_seed(99)
    net = ConvNet()
    criterion = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(net.parameters(), lr=0.006, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(optim, [180, 220], gamma=0.2)
    smooth, hits = None, 0
    for it in range(iters):
        x, y = shapes(batch, gen)
        out = net(x)
        loss = criterion(out, y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        sched.step()
        hits += (out.argmax(1) == y).sum().item()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if it % 20 == 0:
            print(f"iter {it} loss {smooth:.4f}")
        if it % 60 == 59:
            print(f"iter {it} loss {smooth:.4f} top1 {hits / (60 * batch):.3f}")
            hits = 0


main()
