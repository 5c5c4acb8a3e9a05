import torch
import torch.nn as nn
import torch.nn.functional as F


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"]]).norm()
        for g in self.param_groups:
            for p in g["params"]:
                e = p.grad * (g["rho"] / (norm + 1e-12))
                self.state[p]["e"] = e
                p.add_(e)

    @torch.no_grad()
    def descend(self):
        for g in self.param_groups:
            for p in g["params"]:
                p.sub_(self.state[p]["e"])
        self.base.step()


torch.manual_seed(66)
V, L, C = 200, 20, 4
LEX = torch.stack([torch.randperm(V)[:18] for _ in range(C)])
NEG = 0


def reviews(n):
    y = torch.randint(0, C, (n,))
    x = torch.randint(1, V, (n, L))
    for k in range(4):
        pos = torch.randint(0, L - 1, (n,))
        w = LEX[y, torch.randint(0, 18, (n,))]
        x[torch.arange(n), pos] = w
    flip = torch.rand(n) < 0.3
    pos = torch.randint(0, L - 1, (n,))
    other = (y + 1) % C
    x[flip, pos[flip]] = NEG
    x[flip, pos[flip] + 1] = LEX[other[flip], torch.randint(0, 18, (int(flip.sum()),))]
    return x, y


class TextNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.e = nn.Embedding(V, d)
        self.p = nn.Parameter(torch.randn(L, d) * 0.02)
        self.t = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, batch_first=True, norm_first=True)
        self.c = nn.Linear(d, C)

    def forward(self, x):
        return self.c(self.t(self.e(x) + self.p).mean(1))


net = TextNet()
opt = SAM(net.parameters(), torch.optim.SGD, rho=0.08, lr=0.15, momentum=0.9, weight_decay=1e-4)
Xtr, Ytr = reviews(6000)
Xte, Yte = reviews(1000)
for step in range(1, 301):
    j = torch.randint(0, len(Xtr), (64,))
    loss = F.cross_entropy(net(Xtr[j]), Ytr[j])
    loss.backward()
    opt.climb()
    opt.zero_grad()
    F.cross_entropy(net(Xtr[j]), Ytr[j]).backward()
    opt.descend()
    opt.zero_grad()
    if step % 60 == 0:
        with torch.no_grad():
            acc = (net(Xte).argmax(-1) == Yte).float().mean()
        print(f"{step} loss {loss.item():.4f} test acc {acc.item():.3f}")
