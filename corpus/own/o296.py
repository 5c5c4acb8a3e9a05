import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS, EDGE = 5, 24


class Shots:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.freq = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.5])

    def take(self, n):
        y = torch.randint(KINDS, (n,), generator=self.gen)
        angle = torch.rand(n, 1, 1, generator=self.gen) * 3.1416
        yy, xx = torch.meshgrid(torch.linspace(0, 1, EDGE), torch.linspace(0, 1, EDGE), indexing="ij")
        wave = torch.sin(6.2832 * self.freq[y][:, None, None] * (xx * angle.cos() + yy * angle.sin()) + 6.28 * torch.rand(n, 1, 1, generator=self.gen))
        img = 128 + 60 * wave[:, None] * torch.rand(n, 3, 1, 1, generator=self.gen) + 25 * torch.randn(n, 3, EDGE, EDGE, generator=self.gen)
        return img.clamp(0, 255).round(), y


class ConvBN(nn.Sequential):
    def __init__(self, i, o, stride=1):
        super().__init__(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class TextureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(ConvBN(3, 16, 2), ConvBN(16, 32, 1), ConvBN(32, 32, 2), ConvBN(32, 48, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(48, KINDS)

    def forward(self, x):
        return self.fc(self.drop(self.pool(self.features(x)).flatten(1)))

    @torch.no_grad()
    def predict(self, x):
        self.eval()
        return self(x).argmax(-1)


torch.manual_seed(2)
train, probe = Shots(1), Shots(2)
px, py = probe.take(64)
net = TextureNet()
net.train()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [110], 0.2)
for step in range(140):
    if step % 20 == 0:
        accuracy = (net.predict(px) == py).float().mean().item()
        print(f"step {step} probe accuracy {accuracy:.3f}")
    x, y = train.take(32)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 10 == 0 or step == 139:
        print(f"step {step} loss {loss.item():.4f}")
