import numpy as np, torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader


SEED = 3
torch.manual_seed(SEED); np.random.seed(SEED)
TAUS = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95])

def sample(n):
    x = np.random.uniform(-3, 3, (n, 8))
    loc = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    scale = 0.1 + 0.5 / (1 + np.exp(-2 * x[:, 3]))
    y = loc + scale * (np.exp(0.8 * np.random.randn(n)) - 1)
    return torch.tensor(x, dtype=torch.float), torch.tensor(y, dtype=torch.float)

class QNet(nn.Module):
    def __init__(self, d=8, h=96):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU())
        self.mid = nn.Linear(h, 1)
        self.up = nn.Linear(h, 2)
        self.down = nn.Linear(h, 2)
    def forward(self, x):
        z = self.body(x)
        m = self.mid(z)
        up = m + torch.cumsum(nn.functional.softplus(self.up(z)), 1)
        dn = m - torch.cumsum(nn.functional.softplus(self.down(z)), 1)
        return torch.cat([dn.flip(1), m, up], 1)

def pinball(q, y):
    e = y[:, None] - q
    return torch.maximum(TAUS * e, (TAUS - 1) * e).sum(1).mean()

xtr, ytr = sample(10000)
xte, yte = sample(3000)
dl = DataLoader(TensorDataset(xtr, ytr), batch_size=200, shuffle=True)
net = QNet()
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.88)

for epoch in range(14):
    net.train()
    s = 0.
    for x, y in dl:
        opt.zero_grad(set_to_none=False)
        l = pinball(net(x), y)
        l.backward()
        opt.step()
        s += l.item() * len(x)
    sched.step()
    net.eval()
    with torch.no_grad():
        q = net(xte)
        cover = (yte[:, None] <= q).float().mean(0)
        tl = pinball(q, yte)
    print("epoch", epoch, "train", round(s / len(xtr), 4), "test", round(tl.item(), 4),
          "coverage", [round(c, 3) for c in cover.tolist()], "lr", round(opt.param_groups[0]["lr"], 6))
