import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class GlyphWorld:
    def __init__(self, seed, n_class=6, size=12):
        g = torch.Generator().manual_seed(100)
        self.protos = F.interpolate(torch.randn(n_class, 1, 4, 4, generator=g), size=size, mode="bilinear")
        self.g = torch.Generator().manual_seed(seed)
        self.n_class, self.size = n_class, size

    def draw(self, n):
        y = torch.randint(0, self.n_class, (n,), generator=self.g)
        x = self.protos[y] + 0.6 * torch.randn(n, 1, self.size, self.size, generator=self.g)
        return x, y

    def augment(self, x):
        dx, dy = torch.randint(-1, 2, (2,), generator=self.g).tolist()
        x = torch.roll(x, (dx, dy), (2, 3))
        gain = 0.6 + 0.8 * torch.rand(len(x), 1, 1, 1, generator=self.g)
        shift = 0.5 * torch.randn(len(x), 1, 1, 1, generator=self.g)
        return gain * x + shift + 0.5 * torch.randn(x.shape, generator=self.g)


class Encoder(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 3, stride=3)
        for p in self.patch.parameters():
            p.requires_grad_(False)
        self.body = nn.Sequential(
            nn.Conv2d(32, dim, 3, padding=1), nn.BatchNorm2d(dim), nn.ReLU(),
            nn.Conv2d(dim, dim, 3, stride=2, padding=1), nn.BatchNorm2d(dim), nn.ReLU(),
            nn.Flatten(), nn.Linear(dim * 4, dim))

    def forward(self, x):
        return self.body(self.patch(x))


def projector(d_in, d_hidden, d_out):
    return nn.Sequential(nn.Linear(d_in, d_hidden), nn.BatchNorm1d(d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_out))


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(Encoder(), projector(48, 96, 32))
        self.predictor = projector(32, 96, 32)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad_(False)

    def similarity(self, a, b):
        p = self.predictor(self.online(a))
        with torch.no_grad():
            z = self.target(b)
        return 2 - 2 * F.cosine_similarity(p, z, dim=-1).mean()

    def forward(self, a, b):
        return 0.5 * (self.similarity(a, b) + self.similarity(b, a))

    @torch.no_grad()
    def follow(self, tau):
        for o, t in zip(self.online.parameters(), self.target.parameters()):
            t.lerp_(o, 1 - tau)


def knn_accuracy(model, bank, query):
    model.eval()
    with torch.no_grad():
        kx = F.normalize(model.online[0](bank[0]), dim=-1)
        qx = F.normalize(model.online[0](query[0]), dim=-1)
    model.train()
    near = (qx @ kx.T).topk(5, dim=1).indices
    return (bank[1][near].mode(1).values == query[1]).float().mean().item()


def train(steps=220, batch=64):
    torch.manual_seed(12)
    world = GlyphWorld(1)
    bx, by = GlyphWorld(2).draw(200)
    qx, qy = GlyphWorld(3).draw(200)
    bx, qx = world.augment(bx), world.augment(qx)
    model = BYOL()
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for step in range(steps):
        x, _ = world.draw(batch)
        loss = model(world.augment(x), world.augment(x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        model.follow(1 - 0.03 * (1 - step / steps))
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f} knn {knn_accuracy(model, (bx, by), (qx, qy)):.3f}", flush=True)


train()
