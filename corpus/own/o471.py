import math
import torch
from torch import nn
import torch.nn.functional as F

PX = 20


def gratings(n, angles, freqs, gen):
    a = torch.randint(0, len(angles), (n,), generator=gen)
    f = torch.randint(0, len(freqs), (n,), generator=gen)
    g = torch.linspace(-1, 1, PX)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    th = torch.tensor(angles)[a].view(-1, 1, 1) + 0.05 * torch.randn(n, 1, 1, generator=gen)
    ph = 2 * math.pi * torch.rand(n, 1, 1, generator=gen)
    wave = torch.sin(math.pi * torch.tensor(freqs)[f].view(-1, 1, 1) * (xx * th.cos() + yy * th.sin()) + ph)
    img = wave + 0.4 * torch.randn(n, PX, PX, generator=gen)
    return img.unsqueeze(1), a * len(freqs) + f


class TextureNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 24, 7, padding=3), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.classifier = nn.Linear(128, classes)

    def forward(self, x):
        return self.classifier(self.backbone(x))


class Session:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)

    def train(self, x, y, steps, bs, tag):
        for i in range(steps):
            j = torch.randint(0, len(x), (bs,))
            loss = F.cross_entropy(self.net(x[j]), y[j])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % 15 == 0:
                print(f"{tag} step {i} loss {loss.item():.4f}", flush=True)

    def retarget(self, classes):
        self.net.backbone.requires_grad_(False)
        self.net.backbone.eval()
        self.net.classifier = nn.Linear(self.net.classifier.in_features, classes)


@torch.no_grad()
def accuracy(net, x, y):
    net.eval()
    return (net(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(16)
    gen = torch.Generator().manual_seed(16)
    src = gratings(1200, [0.0, 0.8, 1.6, 2.4], [3.0, 6.0], gen)
    new_angles, new_freqs = [0.4, 1.2, 2.0, 2.8], [4.0, 7.0]
    dst = gratings(800, new_angles, new_freqs, gen)
    val = gratings(400, new_angles, new_freqs, gen)

    net = TextureNet(8)
    Session(net, 2e-3).train(*src, steps=80, bs=32, tag="source")

    ses = Session(net, 5e-3)
    ses.retarget(8)
    ses.train(*dst, steps=200, bs=64, tag="target")
    print(f"target val accuracy {accuracy(net, *val):.4f}")


if __name__ == "__main__":
    main()
