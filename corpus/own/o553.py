import math
import torch
import torch.nn as nn

torch.manual_seed(5)
CTX, HOR = 48, 6


def sensors(n, g):
    t = torch.arange(CTX + HOR)
    w = 2 * math.pi / torch.randint(6, 13, (n, 1), generator=g)
    ph = 6.28 * torch.rand(n, 1, generator=g)
    level = 0.01 * torch.randn(n, CTX + HOR, generator=g)
    return 0.5 * torch.sin(w * t + ph) + level


class Relative(nn.Module):

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(d, 3 * d, bias=False)
        self.back = nn.Linear(d, d, bias=False)
        i = torch.arange(CTX)
        gap = (i[:, None] - i[None, :]).float()
        rate = torch.tensor([2.0 ** -(h + 1) for h in range(heads)])
        penalty = -rate[:, None, None] * gap
        self.register_buffer("penalty", penalty.masked_fill(gap < 0, -1e9))

    def forward(self, x):
        q, k, v = self.mix(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + self.penalty
        return self.back((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Net(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.inp = nn.Linear(1, d)
        self.att = nn.ModuleList(Relative(d) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.end = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * HOR))

    def forward(self, x):
        h = self.inp(x[..., None])
        for a, n, f in zip(self.att, self.ln, self.ff):
            h = h + a(n(h))
            h = h + f(h)
        mu, logvar = self.end(h).chunk(2, -1)
        return mu, logvar.clamp(-10, 4)


def windows(rows):
    fut = rows.unfold(1, HOR, 1)[:, 1:]
    return rows[:, :CTX], fut[:, :CTX]


def nll(mu, logvar, y):
    return 0.5 * (logvar + (y - mu) ** 2 * torch.exp(-logvar)).mean()


if __name__ == "__main__":
    g = torch.Generator().manual_seed(50)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
    held_x, held_y = windows(sensors(128, g))
    for step in range(300):
        for grp in opt.param_groups:
            grp["lr"] = 2e-3 * min(1, (step + 1) / 20) * (0.1 + 0.9 * (1 - step / 300))
        x, y = windows(sensors(24, g))
        loss = nll(*net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if step % 30 == 0 or step == 299:
            with torch.no_grad():
                mu, lv = net(held_x)
            print(f"step {step:3d} nll {loss.item():+.3f} held-out nll {nll(mu, lv, held_y).item():+.3f} rmse {(mu - held_y).square().mean().sqrt().item():.4f}")
