import torch
import torch.nn as nn
import torch.nn.functional as F
from types import SimpleNamespace as NS

cfg = NS(items=240, taste=4, length=16, d=64, heads=2, blocks=2, batch=64, iters=350, lr=1e-3, seed=9)


def simulate(n, cfg, g, maps):
    taste = torch.randint(0, cfg.taste, (n,), generator=g)
    cur = torch.randint(1, cfg.items + 1, (n,), generator=g)
    seq = [cur]
    for _ in range(cfg.length):
        nxt = maps[taste, cur - 1]
        rnd = torch.randint(1, cfg.items + 1, (n,), generator=g)
        cur = torch.where(torch.rand(n, generator=g) < 0.1, rnd, nxt)
        seq.append(cur)
    return torch.stack(seq, 1)


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)) for f in (self.q, self.k, self.v))
        s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        n = x.shape[1]
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        return self.o(torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).flatten(2))


class SASRec(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.scale = cfg.d ** 0.5
        self.item_emb = nn.Embedding(cfg.items + 1, cfg.d)
        self.pos_emb = nn.Embedding(cfg.length, cfg.d)
        self.att = nn.ModuleList(Attention(cfg.d, cfg.heads) for _ in range(cfg.blocks))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(cfg.d, 2 * cfg.d), nn.ReLU(), nn.Linear(2 * cfg.d, cfg.d)) for _ in range(cfg.blocks))
        self.n1 = nn.ModuleList(nn.LayerNorm(cfg.d) for _ in range(cfg.blocks))
        self.n2 = nn.ModuleList(nn.LayerNorm(cfg.d) for _ in range(cfg.blocks))
        self.last = nn.LayerNorm(cfg.d)
        for p in self.parameters():
            if p.dim() > 1 and p.shape[0] <= 2 * cfg.d:
                nn.init.xavier_normal_(p)

    def forward(self, seq):
        x = self.item_emb(seq) * self.scale + self.pos_emb(torch.arange(seq.shape[1]))
        for a, f, n1, n2 in zip(self.att, self.ffn, self.n1, self.n2):
            x = x + a(n1(x))
            x = x + f(n2(x))
        return self.last(x) @ self.item_emb.weight.T


def hit_rate(model, seq, k=10):
    with torch.no_grad():
        score = model(seq[:, :-1])[:, -1]
    top = score.topk(k, -1).indices
    h1 = (top[:, 0] == seq[:, -1]).float().mean().item()
    return (top == seq[:, -1:]).any(-1).float().mean().item(), h1


def run(cfg):
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    maps = torch.stack([torch.randperm(cfg.items, generator=g) + 1 for _ in range(cfg.taste)])
    train, test = simulate(6000, cfg, g, maps), simulate(500, cfg, g, maps)
    model = SASRec(cfg)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98))
    for it in range(cfg.iters):
        seq = train[torch.randint(0, len(train), (cfg.batch,), generator=g)]
        logits = model(seq[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 50 == 0:
            print("iter", it, "loss %.4f" % loss.item())
    hr, h1 = hit_rate(model, test)
    print("test HR@10 %.4f HR@1 %.4f" % (hr, h1))


run(cfg)
