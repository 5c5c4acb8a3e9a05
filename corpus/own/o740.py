import math
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

torch.manual_seed(8)
ACTIVITIES = {"walk": (1.8, 1.0, 0.0), "run": (2.8, 1.6, 0.1), "stairs": (1.5, 1.1, 0.5),
              "cycle": (1.2, 0.6, 0.3), "sit": (0.3, 0.15, 0.0)}


def record(name, n):
    f, a, tilt = ACTIVITIES[name]
    t = torch.arange(48) / 20
    f = f * (1 + 0.12 * torch.randn(n, 1))
    a = a * (1 + 0.25 * torch.randn(n, 1))
    ph = torch.rand(n, 1) * 2 * math.pi
    z = a * torch.sin(2 * math.pi * f * t + ph) + 0.4 * a * torch.sin(4 * math.pi * f * t + 2 * ph)
    x = 0.5 * a * torch.cos(2 * math.pi * f * t + ph) + tilt
    y = 0.3 * torch.randn(n, 1) + 0.2 * a * torch.sin(math.pi * f * t)
    sig = torch.stack([x, y, z], -1) + 0.35 * torch.randn(n, 48, 3)
    return TensorDataset(sig, torch.full((n,), list(ACTIVITIES).index(name)))


train_set = ConcatDataset([record(k, 480) for k in ACTIVITIES])
test_set = ConcatDataset([record(k, 100) for k in ACTIVITIES])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
test_loader = DataLoader(test_set, batch_size=100)


class HARNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(3, d, 5, stride=2, padding=2), nn.BatchNorm1d(d), nn.ReLU())
        self.pos = nn.Parameter(torch.zeros(1, 24, d))
        self.tr = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 96, 0.0, batch_first=True), 1, enable_nested_tensor=False)
        self.fc = nn.Linear(d, len(ACTIVITIES))

    def forward(self, x):
        h = self.stem(x.transpose(1, 2)).transpose(1, 2) + self.pos
        return self.fc(self.tr(h).mean(1))


net = HARNet()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
ce = nn.CrossEntropyLoss()
for epoch in range(5):
    net.train()
    for i, (x, y) in enumerate(train_loader):
        opt.zero_grad()
        loss = ce(net(x), y)
        loss.backward()
        opt.step()
        if i % 25 == 0:
            print(f"epoch {epoch} it {i} loss {loss.item():.4f}")
    net.eval()
    conf = torch.zeros(5, 5, dtype=torch.long)
    with torch.no_grad():
        for x, y in test_loader:
            conf.index_put_((y, net(x).argmax(-1)), torch.ones_like(y), accumulate=True)
    print(f"epoch {epoch} test acc {conf.diagonal().sum() / conf.sum():.3f} per class",
          (conf.diagonal() / conf.sum(1)).tolist())
