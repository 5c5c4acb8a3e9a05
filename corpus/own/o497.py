import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(13)


K, D = 8, 64
proto = torch.randn(K, D)
nuis = torch.randn(D, 24)


def base(n):
    y = torch.randint(0, K, (n,))
    return 0.7 * proto[y] + 0.3 * torch.randn(n, D), y


def augment(x):
    x = x + 1.0 * torch.randn(len(x), 24) @ nuis.T * 0.5
    return x * (torch.rand_like(x) > 0.2).float()


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(inplace=True), nn.Linear(h, o))


online = nn.ModuleDict({"enc": mlp(D, 128, 64), "proj": mlp(64, 128, 32)})
predictor = mlp(32, 64, 32)
target = copy.deepcopy(online)
for q in target.parameters():
    q.requires_grad = False

opt = torch.optim.SGD(list(online.parameters()) + list(predictor.parameters()), lr=0.2, momentum=0.9, weight_decay=1e-4)


def z(net, x):
    return net["proj"](net["enc"](x))


def byol(p, t):
    return 2 - 2 * F.cosine_similarity(p, t.detach(), dim=-1).mean()


def probe():
    online.eval()
    xa, ya = base(1500)
    xb, yb = base(1500)
    with torch.no_grad():
        fa, fb = online["enc"](augment(xa)), online["enc"](augment(xb))
    online.train()
    spread = F.normalize(fb - fa.mean(), dim=1).std(0).mean().item()
    m, s = fa.mean(0), fa.std(0) + 1e-5
    fa, fb = (fa - m) / s, (fb - m) / s
    w = torch.linalg.solve(fa.T @ fa + 10 * torch.eye(64), fa.T @ (F.one_hot(ya, K).float() - 1 / K))
    return ((fb @ w).argmax(1) == yb).float().mean().item(), spread


STEPS = 300
for i in range(STEPS + 1):
    x, _ = base(256)
    a, b = augment(x), augment(x)
    pa, pb = predictor(z(online, a)), predictor(z(online, b))
    with torch.no_grad():
        ta, tb = z(target, a), z(target, b)
    loss = 0.5 * (byol(pa, tb) + byol(pb, ta))
    if i % 25 == 0:
        acc, spread = probe()
        print(f"step {i:3d} loss {loss.item():.4f} probe acc {acc:.3f} feature spread {spread:.3f}")
    opt.zero_grad()
    loss.backward()
    opt.step()
    tau = 1 - (1 - 0.97) * (1 - i / STEPS)
    with torch.no_grad():
        for t, o in zip(target.parameters(), online.parameters()):
            t.mul_(tau).add_(o, alpha=1 - tau)
