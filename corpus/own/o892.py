import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)


def waves(n, g):
    c = torch.randint(0, 6, (n,), generator=g)
    t = torch.linspace(0, 1, 64)
    f = torch.tensor([3.0, 5.0, 8.0, 3.0, 5.0, 8.0])[c]
    x = torch.sin(6.283 * f[:, None] * t)
    x = torch.where((c < 3)[:, None], x, x.sign() * 0.8)
    return x, c


def augment(x, g):
    n = len(x)
    sh = torch.randint(0, 64, (n, 1), generator=g)
    x = x.gather(1, (torch.arange(64)[None] + sh) % 64)
    gain = 0.6 + 0.8 * torch.rand(n, 1, generator=g)
    return x * gain + 0.25 * torch.randn(x.shape, generator=g)


def encoder(d=64):
    return nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 32, 7, 2, 3), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, d, 5, 2, 2), nn.BatchNorm1d(d), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


class BYOL(nn.Module):
    def __init__(self, tau=0.98):
        super().__init__()
        self.online = nn.Sequential(encoder(), mlp(64, 96, 48))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = mlp(48, 96, 48)
        self.tau = tau

    def loss(self, a, b):
        def reg(p, z):
            return -F.cosine_similarity(p, z, dim=-1).mean()
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return 0.5 * reg(self.predictor(self.online(a)), tb) + 0.5 * reg(self.predictor(self.online(b)), ta)

    @torch.no_grad()
    def momentum(self):
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.lerp_(p, 1 - self.tau)


def probe(enc, g):
    enc.eval()
    with torch.no_grad():
        (a, ya), (b, yb) = waves(150, g), waves(600, g)
        fa, fb = F.normalize(enc(augment(a, g))), F.normalize(enc(augment(b, g)))
    enc.train()
    near = (fb @ fa.T).topk(5, -1).indices
    vote = F.one_hot(ya[near], 6).sum(1).argmax(-1)
    return (vote == yb).float().mean().item()


g = torch.Generator().manual_seed(4)
m = BYOL()
opt = torch.optim.AdamW([*m.online.parameters(), *m.predictor.parameters()], lr=2e-3, weight_decay=1e-3)
print("knn accuracy at start %.3f" % probe(m.online[0], g))
for it in range(300):
    x, _ = waves(96, g)
    loss = m.loss(augment(x, g), augment(x, g))
    opt.zero_grad()
    loss.backward()
    opt.step()
    m.momentum()
    if it % 30 == 0:
        print("iter", it, "loss", round(loss.item(), 4))
print("knn accuracy held-out %.3f" % probe(m.online[0], g))
