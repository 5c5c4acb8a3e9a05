import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, LENGTH = 8, 48


class Signals:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.freq = 0.15 + 0.9 * torch.arange(CLASSES) / CLASSES
        self.t = torch.arange(LENGTH).float()

    def view(self, y):
        n = len(y)
        phase = 6.28 * torch.rand(n, 1, generator=self.g)
        amp = 0.7 + 0.6 * torch.rand(n, 1, generator=self.g)
        x = amp * torch.sin(self.freq[y].unsqueeze(1) * self.t + phase)
        return (x + 0.4 * torch.randn(n, LENGTH, generator=self.g)).unsqueeze(1)

    def labels(self, n):
        return torch.randint(CLASSES, (n,), generator=self.g)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class Branch(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv1d(1, d, 7, 2, 3), nn.BatchNorm1d(d), nn.ReLU(),
            nn.Conv1d(d, d, 5, 2, 2), nn.BatchNorm1d(d), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.project = mlp(d, 64, 32)

    def forward(self, x):
        return self.project(self.trunk(x))


def neighbours(net, data):
    net.eval()
    with torch.no_grad():
        ya, yb = data.labels(200), data.labels(200)
        a = F.normalize(net.trunk(data.view(ya)), dim=-1)
        b = F.normalize(net.trunk(data.view(yb)), dim=-1)
        hit = (ya[(b @ a.t()).argmax(1)] == yb).float().mean().item()
    net.train()
    return hit


torch.manual_seed(81)
data = Signals(81)
online = Branch()
teacher = copy.deepcopy(online)
for p in teacher.parameters():
    p.requires_grad_(False)
predictor = mlp(32, 64, 32)
opt = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.2, momentum=0.9, weight_decay=5e-4)
for step in range(241):
    y = data.labels(64)
    a, b = data.view(y), data.view(y)
    pa, pb = predictor(online(a)), predictor(online(b))
    with torch.no_grad():
        za, zb = teacher(a), teacher(b)
    loss = -(F.cosine_similarity(pa, zb).mean() + F.cosine_similarity(pb, za).mean()) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for o, t in zip(online.parameters(), teacher.parameters()):
            t.lerp_(o, 0.02)
    if step % 40 == 0:
        print(f"step {step} loss {loss.item():.4f} neighbour acc {neighbours(online, data):.3f}")
