import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def tiles(n, seed):
    r = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:20, 0:20].astype(np.float32)
    y = r.integers(0, 8, n)
    x = np.empty((n, 3, 20, 20), np.float32)
    for i, c in enumerate(y):
        ang = (c % 4) * math.pi / 4 + r.normal(0, 0.1)
        f = 0.8 if c < 4 else 1.5
        w = np.sin(f * (xx * math.cos(ang) + yy * math.sin(ang)) + r.uniform(0, 6.28))
        x[i] = w * r.uniform(0.5, 1, (3, 1, 1)) + r.normal(0, 0.5, (3, 20, 20))
    return torch.from_numpy(x), torch.from_numpy(y)


def augment(x):
    n = len(x)
    oy, ox = torch.randint(0, 5, (2,)).tolist()
    v = x[:, :, oy:oy + 16, ox:ox + 16]
    gain = torch.empty(n, 3, 1, 1).uniform_(0.6, 1.4)
    shift = torch.empty(n, 3, 1, 1).uniform_(-1.5, 1.5)
    return v * gain + shift + 0.2 * torch.randn_like(v)


class Backbone(nn.Sequential):
    def __init__(self, w=24):
        def cbr(i, o, s):
            return [nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        super().__init__(*cbr(3, w, 1), *cbr(w, w, 2), *cbr(w, 2 * w, 2), *cbr(2 * w, 2 * w, 1),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.dim = 2 * w


class SimSiam(nn.Module):
    def __init__(self, backbone, dim=64, hidden=32):
        super().__init__()
        self.backbone = backbone
        d = backbone.dim
        self.projector = nn.Sequential(nn.Linear(d, dim, bias=False), nn.BatchNorm1d(dim), nn.ReLU(inplace=True),
                                       nn.Linear(dim, dim, bias=False), nn.BatchNorm1d(dim, affine=False))
        self.predictor = nn.Sequential(nn.Linear(dim, hidden, bias=False), nn.BatchNorm1d(hidden),
                                       nn.ReLU(inplace=True), nn.Linear(hidden, dim))

    def forward(self, x1, x2):
        z1 = self.projector(self.backbone(x1))
        z2 = self.projector(self.backbone(x2))
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return p1, p2, z1, z2


def neg_cosine(p, z):
    return -F.cosine_similarity(p, z, dim=-1).mean()


@torch.no_grad()
def readout(backbone, train, test):
    backbone.eval()
    feats = []
    for x, _ in (train, test):
        feats.append(torch.cat([backbone(b[:, :, 2:18, 2:18]) for b in x.split(256)]))
    backbone.train()
    a, b = feats
    mu, sd = a.mean(0), a.std(0) + 1e-3
    a = torch.cat([(a - mu) / sd, torch.ones(len(a), 1)], 1).double()
    b = torch.cat([(b - mu) / sd, torch.ones(len(b), 1)], 1).double()
    w = torch.linalg.solve(a.T @ a + 1.0 * torch.eye(a.size(1)).double(), a.T @ F.one_hot(train[1], 8).double())
    return ((b @ w).argmax(1) == test[1]).float().mean().item()


def main():
    torch.manual_seed(8)
    unlabeled, _ = tiles(2048, 0)
    probe, test = tiles(400, 1), tiles(600, 2)
    model = SimSiam(Backbone())
    bs, epochs, base_lr = 128, 12, 0.03
    opt = torch.optim.SGD([{"params": [*model.backbone.parameters(), *model.projector.parameters()], "fix": False},
                           {"params": model.predictor.parameters(), "fix": True}],
                          lr=base_lr, momentum=0.9, weight_decay=5e-4)
    step = 0
    for ep in range(epochs):
        for g in opt.param_groups:
            g["lr"] = base_lr if g["fix"] else base_lr * 0.5 * (1 + math.cos(math.pi * ep / epochs))
        for idx in torch.randperm(len(unlabeled)).split(bs):
            x = unlabeled[idx]
            p1, p2, z1, z2 = model(augment(x), augment(x))
            loss = 0.5 * neg_cosine(p1, z2) + 0.5 * neg_cosine(p2, z1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 16 == 0:
                print(f"epoch {ep:2d} step {step:4d} loss {loss.item():.4f}")
            step += 1
        if ep % 3 == 2:
            print(f"epoch {ep:2d} linear read-out acc {readout(model.backbone, probe, test):.3f}")


if __name__ == "__main__":
    main()
