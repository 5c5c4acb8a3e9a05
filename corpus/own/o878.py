import torch
import torch.nn as nn
import torch.nn.functional as F


def silu_mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.SiLU(), nn.Linear(h, o))


class EGCL(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.edge = silu_mlp(2 * d + 1, d, d)
        self.node = silu_mlp(2 * d, d, d)
        self.coord = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1, bias=False))
        nn.init.xavier_uniform_(self.coord[-1].weight, gain=1e-3)

    def forward(self, h, x, mask):
        n = h.shape[1]
        rel = x[:, :, None] - x[:, None]
        d2 = rel.pow(2).sum(-1, keepdim=True)
        dist = (d2 + 1e-8).sqrt()
        pair = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), dist], -1)
        m = self.edge(pair) * mask[..., None]
        x = x + (rel / (dist + 1) * self.coord(m) * mask[..., None]).sum(2) / n
        h = h + self.node(torch.cat([h, m.sum(2)], -1))
        return h, x


class EnergyModel(nn.Module):
    def __init__(self, kinds=3, d=32, layers=3):
        super().__init__()
        self.emb = nn.Embedding(kinds, d)
        self.layers = nn.ModuleList(EGCL(d) for _ in range(layers))
        self.out = silu_mlp(d, d, 1)

    def forward(self, z, pos):
        n = z.shape[1]
        mask = 1 - torch.eye(n).expand(len(z), n, n)
        h, x = self.emb(z), pos
        for l in self.layers:
            h, x = l(h, x, mask)
        return self.out(h).sum((1, 2))


def molecules(count, g, n=9):
    z = torch.randint(0, 3, (count, n), generator=g)
    grid = torch.cartesian_prod(*[torch.arange(3.0)] * 3)
    pos = torch.stack([grid[torch.randperm(27, generator=g)[:n]] for _ in range(count)])
    pos = pos + 0.15 * torch.randn(pos.shape, generator=g)
    charge = torch.tensor([-1.0, 0.5, 1.0])[z]
    r = torch.cdist(pos, pos) + 10 * torch.eye(n)
    e = (charge[:, :, None] * charge[:, None] * torch.exp(-0.7 * r)).triu(1).sum((1, 2))
    return z, pos, e


torch.manual_seed(31)
gen = torch.Generator().manual_seed(32)
z, pos, e = molecules(2400, gen)
mu, sd = e[:2000].mean(), e[:2000].std()
e = (e - mu) / sd
net = EnergyModel()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300)
step = 0
for epoch in range(6):
    for ix in torch.randperm(2000, generator=gen).split(40):
        loss = F.smooth_l1_loss(net(z[ix], pos[ix]), e[ix])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 30 == 0:
            print("step", step, "loss", round(loss.item(), 4))
        step += 1
with torch.no_grad():
    pred = net(z[2000:], pos[2000:])
print("test mae in std units", round((pred - e[2000:]).abs().mean().item(), 4))
