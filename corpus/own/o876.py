import math
import torch
from torch import nn
import torch.nn.functional as F

SHAPES = ["sphere", "cube", "torus", "cone", "helix"]


def cloud(kind, n=64):
    u, v = torch.rand(n) * 2 * math.pi, torch.rand(n)
    if kind == 0:
        p = F.normalize(torch.randn(n, 3), dim=1)
    elif kind == 1:
        p = torch.rand(n, 3) * 2 - 1
        ax = torch.randint(0, 3, (n,))
        p[torch.arange(n), ax] = p[torch.arange(n), ax].sign()
    elif kind == 2:
        w = v * 2 * math.pi
        p = torch.stack([(1 + 0.35 * w.cos()) * u.cos(), (1 + 0.35 * w.cos()) * u.sin(), 0.35 * w.sin()], 1)
    elif kind == 3:
        p = torch.stack([v.sqrt() * u.cos(), v.sqrt() * u.sin(), 1 - 2 * v.sqrt()], 1)
    else:
        p = torch.stack([(2 * u).cos(), (2 * u).sin(), u / math.pi - 1], 1)
    a = torch.rand(1).item() * 2 * math.pi
    R = torch.tensor([[math.cos(a), -math.sin(a), 0], [math.sin(a), math.cos(a), 0], [0, 0, 1.0]])
    return p @ R.T * (0.8 + 0.4 * torch.rand(1)) + 0.04 * torch.randn(n, 3)


class PointNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.mlp = nn.ModuleList([nn.Conv1d(a, b, 1) for a, b in ((3, 32), (32, 64), (64, 128))])
        self.bn = nn.ModuleList([nn.BatchNorm1d(c) for c in (32, 64, 128)])
        self.head = nn.Sequential(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, k))

    def forward(self, pts):
        x = pts.transpose(1, 2)
        for conv, bn in zip(self.mlp, self.bn):
            x = F.relu(bn(conv(x)))
        return self.head(x.amax(-1))


class Runner:
    def __init__(self):
        torch.manual_seed(13)
        self.net = PointNet(len(SHAPES))
        self.train_set = self.build(240)
        self.test_sets = [(k, torch.stack([cloud(k) for _ in range(60)])) for k in range(len(SHAPES))]
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)

    def build(self, per):
        xs, ys = [], []
        for k in range(len(SHAPES)):
            xs += [cloud(k) for _ in range(per)]
            ys += [k] * per
        return torch.stack(xs), torch.tensor(ys)

    def set_mode(self, training):
        self.net.train(training)
        return self.net

    def train_epoch(self):
        net = self.set_mode(True)
        x, y = self.train_set
        order = torch.randperm(len(x))
        losses = []
        for ix in order.split(40):
            loss = F.cross_entropy(net(x[ix]), y[ix])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def test(self):
        net = self.set_mode(False)
        per_class = {}
        for k, pts in self.test_sets:
            per_class[SHAPES[k]] = (net(pts).argmax(-1) == k).float().mean().item()
        return per_class


r = Runner()
for ep in range(10):
    print("epoch", ep, "loss %.4f" % r.train_epoch())
acc = r.test()
print("test per class", {k: round(v, 3) for k, v in acc.items()})
print("test mean accuracy %.3f" % (sum(acc.values()) / len(acc)))
