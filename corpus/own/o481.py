import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=8)
p.add_argument("--gamma", type=float, default=2.0)
p.add_argument("--alpha", type=float, default=0.75)
args = p.parse_args()
torch.manual_seed(1234)


N, NUM, CAT = 24000, 10, 6
cards = [5, 9, 20, 3, 50, 7]
xn = torch.randn(N, NUM)
xn[:, 3] = xn[:, 3].exp()
xc = torch.stack([torch.randint(0, c, (N,)) for c in cards], 1)
eff = [torch.randn(c) * 0.9 for c in cards]
score = 1.5 * xn[:, 0] * (xn[:, 1] > 0) - 1.0 * xn[:, 2] + 0.6 * xn[:, 3].clamp(max=6)
for j in range(CAT):
    score = score + eff[j][xc[:, j]]
y = (score + 0.3 * torch.randn(N) > torch.quantile(score, 0.95)).float()
tr, va = torch.arange(0, 20000), torch.arange(20000, N)
xn[:, 3] = xn[:, 3].log()
print("positives: %.3f train / %.3f val" % (y[tr].mean(), y[va].mean()))


class Tab(nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(c, min(16, 2 + c // 2)) for c in cards])
        d = NUM + sum(e.embedding_dim for e in self.emb)
        self.bn = nn.BatchNorm1d(NUM)
        self.f = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Dropout(.2), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(.2))
        self.head = nn.Linear(64, 1)

        nn.init.constant_(self.head.bias, -math.log((1 - prior) / prior))
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, a, c):
        h = torch.cat([self.bn(a)] + [e(c[:, i]) for i, e in enumerate(self.emb)], 1)
        return self.head(self.f(h)).squeeze(1)


def focal(logit, t):
    ce = F.binary_cross_entropy_with_logits(logit, t, reduction="none")
    pt = torch.exp(-ce)
    at = args.alpha * t + (1 - args.alpha) * (1 - t)
    return (at * (1 - pt) ** args.gamma * ce).mean()


def auprc(s, t):
    o = t[s.argsort(descending=True)]
    prec = o.cumsum(0) / torch.arange(1, len(o) + 1)
    return (prec * o).sum().item() / o.sum().item()


model = Tab(0.05)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for ep in range(args.epochs):
    model.train()
    acc = 0
    for idx in tr[torch.randperm(len(tr))].split(256):
        loss = focal(model(xn[idx], xc[idx]), y[idx])
        opt.zero_grad(); loss.backward(); opt.step()
        acc += loss.item() * len(idx)
    model.eval()
    with torch.no_grad():
        s = model(xn[va], xc[va])
    a = ((s > 0) == (y[va] > .5)).float().mean().item()
    print(f"ep {ep + 1}/{args.epochs} focal loss {acc / len(tr):.5f}  val acc {a:.4f}  val AUPRC {auprc(s, y[va]):.4f}")
