import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def disable_running_stats(m):
    if isinstance(m, nn.BatchNorm2d):
        m.backup_momentum, m.momentum = m.momentum, 0.0


def enable_running_stats(m):
    if isinstance(m, nn.BatchNorm2d) and hasattr(m, "backup_momentum"):
        m.momentum = m.backup_momentum


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.5, adaptive=True, **kw):
        super().__init__(params, dict(rho=rho, adaptive=adaptive, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups

    def _norm(self):
        return torch.stack([((p.abs() if g["adaptive"] else 1.0) * p.grad).norm()
                            for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()

    @torch.no_grad()
    def ascend(self):
        n = self._norm()
        for g in self.param_groups:
            s = g["rho"] / (n + 1e-12)
            for p in g["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old"] = p.detach().clone()
                p.add_((p.square() if g["adaptive"] else 1.0) * p.grad * s)
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for g in self.param_groups:
            for p in g["params"]:
                if "old" in self.state[p]:
                    p.copy_(self.state[p].pop("old"))
        self.base.step()
        self.zero_grad()


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.c2, self.b2 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        nn.init.orthogonal_(self.c1.weight, math.sqrt(2))
        nn.init.orthogonal_(self.c2.weight, math.sqrt(2))
        nn.init.zeros_(self.b2.weight)

    def forward(self, x):
        return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))


class Net(nn.Module):
    def __init__(self, w=16, classes=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU())
        self.body = nn.Sequential(Res(w), Res(w), nn.AvgPool2d(2))
        self.fc = nn.Linear(w, classes)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x):
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


def data(n, seed):
    r = np.random.default_rng(seed)
    yy, xx = np.mgrid[0:16, 0:16].astype(np.float32) - 7.5
    y = r.integers(0, 8, n)
    x = np.zeros((n, 1, 16, 16), np.float32)
    for i, c in enumerate(y):
        a = c * math.pi / 8 + r.normal(0, 0.06)
        x[i, 0] = np.cos(1.1 * (xx * math.cos(a) + yy * math.sin(a)) + r.uniform(0, 6.28)) + r.normal(0, 0.7, (16, 16))
    return torch.from_numpy(x), torch.from_numpy(y)


@torch.no_grad()
def robustness(net, x, y):
    net.eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noisy = x + 0.5 * torch.randn_like(x)
        out = net(noisy)
    net.train()
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


torch.manual_seed(4)
xtr, ytr = data(1536, 1)
xte, yte = data(512, 2)
net = Net()
opt = SAM(net.parameters(), torch.optim.SGD, rho=0.5, adaptive=True, lr=0.1, momentum=0.9, weight_decay=5e-4)
steps = 160
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt.base, steps)
for step in range(steps):
    i = torch.randint(0, len(xtr), (64,))
    x, y = xtr[i], ytr[i]
    net.apply(enable_running_stats)
    loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
    loss.backward()
    opt.ascend()
    net.apply(disable_running_stats)
    F.cross_entropy(net(x), y, label_smoothing=0.1).backward()
    opt.descend()
    sched.step()
    if step % 10 == 0:
        print(f"step {step:3d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.4f}")
    if step % 40 == 39:
        l, a = robustness(net, xte, yte)
        print(f"   corrupted test loss {l:.4f} acc {a:.3f}")
