import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, LATENT, RAW = 8, 12, 64
torch.manual_seed(2)
centers = 1.5 * torch.randn(CLASSES, LATENT)
lens = torch.randn(LATENT, RAW) / LATENT ** 0.5
lighting = 0.6 * torch.randn(6, RAW)


def draw(n):
    y = torch.randint(0, CLASSES, (n,))
    z = centers[y] + 0.5 * torch.randn(n, LATENT)
    return torch.tanh(z @ lens), y


def augment(x):
    keep = (torch.rand_like(x) > 0.25).float()
    return x * keep + torch.randn(len(x), 6) @ lighting + 0.2 * torch.randn_like(x)


def tower(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, tau=0.98):
        super().__init__()
        self.online = nn.Sequential(tower(RAW, 128, 64), tower(64, 64, 32))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = tower(32, 64, 32)
        self.tau = tau

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return 2 - F.cosine_similarity(pa, tb).mean() - F.cosine_similarity(pb, ta).mean()

    @torch.no_grad()
    def follow(self):
        for slow, fast in zip(self.target.parameters(), self.online.parameters()):
            slow.mul_(self.tau).add_(fast, alpha=1 - self.tau)


def probe(model):
    """nearest class mean on frozen features"""
    model.eval()
    with torch.no_grad():
        x, y = draw(800)
        f = model.online[0](augment(x))
        means = torch.stack([f[y == c].mean(0) for c in range(CLASSES)])
        xt, yt = draw(800)
        acc = (torch.cdist(model.online[0](augment(xt)), means).argmin(1) == yt).float().mean().item()
    model.train()
    return acc


model = BYOL()
opt = torch.optim.Adam([*model.online.parameters(), *model.predictor.parameters()], lr=1e-3)
print(f"probe before {probe(model):.3f}")
for step in range(320):
    x, _ = draw(128)
    loss = model(augment(x), augment(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.follow()
    if step % 20 == 0 or step == 319:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
print(f"probe after {probe(model):.3f}")
