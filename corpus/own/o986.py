from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(123)


@dataclass
class Conf:
    vocab: int = 40
    domains: int = 6
    seq: int = 32
    dim: int = 48
    hidden: int = 32
    experts: int = 8
    active: int = 2
    bias_speed: float = 0.005
    lr: float = 3e-3
    steps: int = 260
    batch: int = 32


c = Conf()
gen = torch.Generator().manual_seed(1)
NEXT = torch.stack([torch.stack([torch.randperm(c.vocab, generator=gen) for _ in range(3)], -1) for _ in range(c.domains)])
CHOICE = torch.tensor([0.6, 0.25, 0.15])
print(f"source entropy {-(CHOICE * CHOICE.log()).sum().item():.4f} nats")


def sample(n):
    dom = torch.randint(c.domains, (n,), generator=gen)
    x = torch.empty(n, c.seq + 1, dtype=torch.long)
    x[:, 0] = c.vocab + dom
    x[:, 1] = torch.randint(c.vocab, (n,), generator=gen)
    for t in range(1, c.seq):
        pick = torch.multinomial(CHOICE, n, replacement=True, generator=gen)
        x[:, t + 1] = NEXT[dom, x[:, t], pick]
    y = x[:, 1:].clone()
    y[:, 0] = -100
    return x[:, :-1], y


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Parameter(torch.randn(c.experts, c.dim) * c.dim**-0.5)
        self.register_buffer("bias", torch.zeros(c.experts))
        self.w_in = nn.Parameter(torch.randn(c.experts, c.dim, c.hidden) * c.dim**-0.5)
        self.w_out = nn.Parameter(torch.zeros(c.experts, c.hidden, c.dim))
        self.shared = nn.Sequential(nn.Linear(c.dim, c.hidden), nn.SiLU(), nn.Linear(c.hidden, c.dim))
        nn.init.zeros_(self.shared[2].weight)
        self.last_load = torch.zeros(c.experts)

    def forward(self, x):
        flat = x.flatten(0, 1)
        score = torch.sigmoid(flat @ self.router.T)
        pick = (score.detach() + self.bias).topk(c.active, dim=-1).indices
        gate = score.gather(-1, pick)
        gate = gate / gate.sum(-1, keepdim=True)
        dense = torch.zeros_like(score).scatter(-1, pick, gate)
        h = F.silu(torch.einsum("nd,edh->neh", flat, self.w_in))
        y = torch.einsum("neh,ehd,ne->nd", h, self.w_out, dense)
        if self.training:
            with torch.no_grad():
                load = torch.bincount(pick.flatten(), minlength=c.experts).float()
                self.last_load = load / load.sum()
                self.bias += c.bias_speed * torch.sign(load.mean() - load)
        return (y + self.shared(flat)).view_as(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(c.vocab + c.domains, c.dim)
        self.pos = nn.Embedding(c.seq, c.dim)
        self.att = nn.ModuleList(nn.MultiheadAttention(c.dim, 4, batch_first=True) for _ in range(2))
        self.moe = nn.ModuleList(Experts() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(c.dim) for _ in range(5))
        self.head = nn.Linear(c.dim, c.vocab)
        for a in self.att:
            nn.init.zeros_(a.out_proj.weight)

    def forward(self, ids):
        n = ids.size(1)
        causal = torch.ones(n, n, dtype=torch.bool).triu(1)
        x = self.emb(ids) + self.pos.weight[:n]
        for i, (a, m) in enumerate(zip(self.att, self.moe)):
            h = self.norms[2 * i](x)
            x = x + a(h, h, h, attn_mask=causal, need_weights=False)[0]
            x = x + m(self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x))


net = Net()
matrices = [p for p in net.parameters() if p.dim() >= 2]
vectors = [p for p in net.parameters() if p.dim() < 2]
opt = torch.optim.AdamW([dict(params=matrices, weight_decay=0.05), dict(params=vectors, weight_decay=0.0)], lr=c.lr)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, c.lr, total_steps=c.steps, pct_start=0.1)
for step in range(c.steps):
    x, y = sample(c.batch)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 20 == 0 or step == c.steps - 1:
        load = net.moe[1].last_load
        print(f"step {step:3d} loss {loss.item():.4f} load min {load.min():.3f} max {load.max():.3f}")
net.eval()
with torch.no_grad():
    x, y = sample(256)
    v = F.cross_entropy(net(x).flatten(0, 1), y.flatten()).item()
print(f"held-out loss {v:.4f}")
