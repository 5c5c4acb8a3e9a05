import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(21)
LEN = 64


def beats(n):
    y = torch.randint(0, 4, (n,))
    t = torch.linspace(0, 1, LEN)[None]
    w = 0.02 + 0.02 * (y == 1).float()[:, None]
    p = torch.exp(-0.5 * ((t - 0.5) / w) ** 2) * torch.where(y == 2, -1.0, 1.0)[:, None]
    tw = 0.4 * torch.exp(-0.5 * ((t - 0.75) / 0.05) ** 2) * torch.where(y == 3, -1.0, 1.0)[:, None]
    pw = 0.2 * torch.exp(-0.5 * ((t - 0.3) / 0.03) ** 2)
    x = (p + tw + pw) * (0.5 + torch.rand(n, 1))
    wander = torch.sin(2 * math.pi * (torch.rand(n, 1) * 2 * t + torch.rand(n, 1)))
    x = x + 0.4 * wander * torch.randn(n, 1) + 0.1 * torch.randn(n, LEN)
    return torch.stack([torch.roll(r, int(s)) for r, s in zip(x, torch.randint(-2, 3, (n,)))]), y


def augment(x):
    x = x * (0.5 + torch.rand(len(x), 1)) + 0.1 * torch.randn_like(x)
    drift = torch.sin(2 * math.pi * (torch.rand(len(x), 1) * 2 * torch.linspace(0, 1, LEN) + torch.rand(len(x), 1)))
    x = x + 0.5 * torch.randn(len(x), 1) * drift
    shift = torch.randint(-2, 3, (len(x), 1))
    return x.gather(1, (torch.arange(LEN)[None] + shift) % LEN)


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.patch = nn.Linear(8, d)
        self.pos = nn.Parameter(0.02 * torch.randn(1, LEN // 8, d))
        self.tr = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 96, 0.0, batch_first=True, norm_first=True),
                                        2, enable_nested_tensor=False)
        self.proj = nn.Sequential(nn.Linear(d, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))

    def features(self, x):
        return self.tr(self.patch(x.view(len(x), -1, 8)) + self.pos).mean(1)

    def forward(self, x):
        return self.proj(self.features(x))


online = Encoder()
target = copy.deepcopy(online).requires_grad_(False)
predictor = nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))
opt = torch.optim.AdamW(list(online.parameters()) + list(predictor.parameters()), lr=2e-3, weight_decay=1e-3)
pool, pool_y = beats(4000)
STEPS = 220


def sim(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1).mean()


def probe():
    with torch.no_grad():
        f = online.features(pool[:1500])
        fm = (f - f.mean(0)) / (f.std(0) + 1e-6)
        y = F.one_hot(pool_y[:1500], 4).float()
        W = torch.linalg.lstsq(torch.cat([fm[:1000], torch.ones(1000, 1)], 1), y[:1000]).solution
        pr = torch.cat([fm[1000:], torch.ones(500, 1)], 1) @ W
        return (pr.argmax(-1) == pool_y[1000:1500]).float().mean().item(), f.std(0).mean().item()


for step in range(STEPS):
    x = pool[torch.randint(0, len(pool), (64,))]
    a, b = augment(x), augment(x)
    with torch.no_grad():
        ta, tb = target(a), target(b)
    loss = sim(predictor(online(a)), tb) + sim(predictor(online(b)), ta)
    opt.zero_grad()
    loss.backward()
    opt.step()
    tau = 1 - 0.04 * (math.cos(math.pi * step / STEPS) + 1) / 2
    with torch.no_grad():
        for pt, po in zip(target.parameters(), online.parameters()):
            pt.mul_(tau).add_(po, alpha=1 - tau)
    if step % 40 == 0 or step == STEPS - 1:
        acc, spread = probe()
        print(f"step {step} loss {loss.item():.4f} probe acc {acc:.3f} feature std {spread:.3f}")
