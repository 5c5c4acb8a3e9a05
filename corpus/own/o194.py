import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(27)

V, T, D = 50, 20, 64


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.1)
        self.layer = nn.TransformerEncoderLayer(D, 4, 128, 0.1, batch_first=True)
        self.proj = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.ReLU(), nn.Linear(D, D), nn.BatchNorm1d(D))

    def forward(self, x):
        return self.proj(self.layer(self.emb(x) + self.pos).mean(1))


class SiamLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.predictor = nn.Sequential(nn.Linear(D, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, D))

    def forward(self, a, b):
        za, zb = self.tower(a), self.tower(b)
        pa, pb = self.predictor(za), self.predictor(zb)
        return pa, pb, za.detach(), zb.detach()


def views(n):
    kind = torch.randint(0, 10, (n, 1))
    base = (kind * 5 + torch.randint(0, 5, (n, T))) % V

    def corrupt(x):
        return torch.where(torch.rand(x.shape) < 0.25, torch.randint(0, V, x.shape), x)

    return corrupt(base), corrupt(base), kind.squeeze(1)


model = SiamLike()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=160)


def probe():
    model.eval()
    with torch.no_grad():
        a, _, ka = views(200)
        b, _, kb = views(200)
        za, zb = F.normalize(model.tower(a), dim=-1), F.normalize(model.tower(b), dim=-1)
        hit = (ka[(zb @ za.t()).argmax(-1)] == kb).float().mean().item()
        std = za.std(0).mean().item()
    model.train()
    return hit, std


for step in range(160):
    a, b, _ = views(48)
    pa, pb, za, zb = model(a, b)
    loss = -0.5 * (F.cosine_similarity(pa, zb, dim=-1).mean() + F.cosine_similarity(pb, za, dim=-1).mean())
    opt.zero_grad(set_to_none=False)
    loss.backward()
    opt.step()
    sched.step()
    if step % 20 == 0 or step == 159:
        hit, std = probe()
        print(f"step {step} loss {loss.item():.4f} nn_acc {hit:.3f} std {std:.3f}")
