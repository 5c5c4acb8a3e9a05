import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
NUM, CAT, CARD = 8, 3, 6


class FeatureTokenizer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.randn(NUM, d) * d ** -0.5)
        self.b = nn.Parameter(torch.randn(NUM, d) * d ** -0.5)
        self.cat = nn.ModuleList(nn.Embedding(CARD, d) for _ in range(CAT))
        self.cls = nn.Parameter(torch.randn(1, 1, d) * d ** -0.5)

    def forward(self, xn, xc):
        t = xn[..., None] * self.w + self.b
        c = torch.stack([e(xc[:, i]) for i, e in enumerate(self.cat)], 1)
        return torch.cat([self.cls.expand(len(xn), -1, -1), t, c], 1)


class LowRank(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.a.T) @ self.b.T


class Block(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.f1, self.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = (m(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class FTTransformer(nn.Module):
    def __init__(self, d=40, depth=2, out=1):
        super().__init__()
        self.tok = FeatureTokenizer(d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, out)

    def forward(self, xn, xc):
        h = self.tok(xn, xc)
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h[:, 0])).squeeze(-1)


def customers(n, g, drift):
    xn = torch.randn(n, NUM, generator=g)
    xc = torch.randint(0, CARD, (n, CAT), generator=g)
    effect = torch.linspace(-1, 1, CARD)
    s = xn[:, 0] * xn[:, 1] + torch.sin(2 * xn[:, 2]) + effect[xc[:, 0]] * xn[:, 3] + (xc[:, 1] == xc[:, 2]).float()
    if drift:
        s = s - 1.5 * xn[:, 4] + 0.8 * effect[xc[:, 1]]
    return xn, xc, s + 0.2 * torch.randn(n, generator=g)


def fit(model, params, data, steps, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    xn, xc, y = data
    model.train()
    for step in range(1, steps + 1):
        i = torch.randint(0, len(y), (64,))
        loss = F.smooth_l1_loss(model(xn[i], xc[i]), y[i])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 100 == 0:
            print(f"{tag} step {step} loss {loss.item():.4f}")


@torch.no_grad()
def r2(model, data):
    model.eval()
    xn, xc, y = data
    return (1 - (model(xn, xc) - y).pow(2).mean() / y.var()).item()


g = torch.Generator().manual_seed(55)
big, big_test = customers(8000, g, False), customers(1000, g, False)
small, small_test = customers(2000, g, True), customers(1000, g, True)
model = FTTransformer()
fit(model, list(model.parameters()), big, 500, 2e-3, "source")
print(f"source R2 {r2(model, big_test):.4f}  target R2 before adaptation {r2(model, small_test):.4f}")

for p in model.parameters():
    p.requires_grad_(False)
for blk in model.blocks:
    blk.q, blk.v, blk.f1, blk.f2 = LowRank(blk.q), LowRank(blk.v), LowRank(blk.f1), LowRank(blk.f2)
model.head.requires_grad_(True)
trainable = [p for p in model.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters()))
fit(model, trainable, small, 300, 3e-3, "adapt")
print(f"target R2 after adaptation {r2(model, small_test):.4f}")
