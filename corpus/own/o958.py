import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
N = 64
KINDS = ["sphere", "cube", "cylinder", "torus", "cone"]


def cloud(kind, n, g):
    u = torch.rand(n, N, generator=g)
    a = 6.2832 * torch.rand(n, N, generator=g)
    if kind == 0:
        p = F.normalize(torch.randn(n, N, 3, generator=g), dim=-1)
    elif kind == 1:
        p = 2 * torch.rand(n, N, 3, generator=g) - 1
        ax = torch.randint(0, 3, (n, N, 1), generator=g)
        p = p.scatter(-1, ax, torch.sign(p.gather(-1, ax)))
    elif kind == 2:
        p = torch.stack([a.cos(), a.sin(), 2 * u - 1], -1)
    elif kind == 3:
        b = 6.2832 * torch.rand(n, N, generator=g)
        p = torch.stack([(1 + .35 * b.cos()) * a.cos(), (1 + .35 * b.cos()) * a.sin(), .35 * b.sin()], -1)
    else:
        r = u.sqrt()
        p = torch.stack([r * a.cos(), r * a.sin(), 1 - 2 * r], -1)
    s = 0.8 + 0.4 * torch.rand(n, 1, 3, generator=g)
    th = 6.2832 * torch.rand(n, generator=g)
    z, o = torch.zeros_like(th), torch.ones_like(th)
    rot = torch.stack([th.cos(), -th.sin(), z, th.sin(), th.cos(), z, z, z, o], -1).view(n, 3, 3)
    return (p * s) @ rot.transpose(1, 2) + 0.03 * torch.randn(n, N, 3, generator=g)


def dataset(per, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.cat([cloud(k, per, g) for k in range(5)])
    y = torch.arange(5).repeat_interleave(per)
    return x, y


class MAB(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.att = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ln_q, self.ln_f = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, q, kv):
        q = q + self.att(self.ln_q(q), kv, kv, need_weights=False)[0]
        return q + self.ff(self.ln_f(q))


class SetTransformer(nn.Module):
    def __init__(self, d=48, inducing=12):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(3, d), nn.GELU(), nn.Linear(d, d))
        self.ind = nn.ParameterList(nn.Parameter(torch.randn(1, inducing, d) * d ** -0.5) for _ in range(2))
        self.down = nn.ModuleList(MAB(d) for _ in range(2))
        self.up = nn.ModuleList(MAB(d) for _ in range(2))
        self.seed = nn.Parameter(torch.randn(1, 1, d) * d ** -0.5)
        self.pool = MAB(d)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 5))

    def forward(self, p):
        x = self.lift(p)
        for i, down, up in zip(self.ind, self.down, self.up):
            x = up(x, down(i.expand(len(x), -1, -1), x))
        return self.head(self.pool(self.seed.expand(len(x), -1, -1), x)[:, 0])


tx, ty = dataset(500, 1)
vx, vy = dataset(100, 2)
net = SetTransformer()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.02)
steps = 280
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 30, max(0.0, 1 - s / steps) ** 0.5))
for step in range(1, steps + 1):
    net.train()
    i = torch.randint(0, len(tx), (40,))
    shuffled = tx[i][:, torch.randperm(N)]
    loss = F.cross_entropy(net(shuffled), ty[i], label_smoothing=0.1)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 2.0)
    opt.step()
    sched.step()
    if step % 40 == 0:
        net.eval()
        with torch.no_grad():
            acc = (net(vx).argmax(1) == vy).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} held-out accuracy {acc:.4f}")
