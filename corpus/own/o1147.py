import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(31)
H = W = 5
DAYS, D, LOOPS = 8, 48, 2


def simulate(n):
    yy, xx = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    cy, cx = torch.rand(n) * H, torch.rand(n) * W
    vy, vx = (torch.randint(-1, 2, (n,)), torch.randint(-1, 2, (n,)))
    frames = []
    for t in range(DAYS + 1):
        dy = (yy - (cy + vy * t)[:, None, None] + H / 2) % H - H / 2
        dx = (xx - (cx + vx * t)[:, None, None] + W / 2) % W - W / 2
        frames.append(torch.exp(-(dy ** 2 + dx ** 2) / 2.0))
    x = torch.stack(frames, 1).flatten(2)
    sd = torch.where(xx.flatten() < W // 2, 0.15, 0.05)
    return x + sd * torch.randn_like(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.time_att = nn.MultiheadAttention(D, 4)
        self.cell_att = nn.MultiheadAttention(D, 4)
        self.n1, self.n2, self.n3 = nn.LayerNorm(D), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 3 * D), nn.GELU(), nn.Linear(3 * D, D))

    def forward(self, x):
        B, S, C, _ = x.shape
        z = self.n1(x).permute(1, 0, 2, 3).reshape(S, B * C, D)
        z = self.time_att(z, z, z, need_weights=False)[0]
        x = x + z.view(S, B, C, D).transpose(0, 1)
        z = self.n2(x).permute(2, 0, 1, 3).reshape(C, B * S, D)
        z = self.cell_att(z, z, z, need_weights=False)[0]
        x = x + z.view(C, B, S, D).permute(1, 2, 0, 3)
        return x + self.ff(self.n3(x))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(1, D)
        self.day = nn.Parameter(torch.randn(DAYS, 1, D) * 0.1)
        self.cell = nn.Parameter(torch.randn(1, H * W, D) * 0.1)
        self.block = Block()
        self.out = nn.Sequential(nn.LayerNorm(DAYS * D), nn.Linear(DAYS * D, 2))

    def forward(self, x):
        h = self.lift(x[..., None]) + self.day + self.cell
        for _ in range(LOOPS):
            h = self.block(h)
        mu, s = self.out(h.transpose(1, 2).flatten(2)).unbind(-1)
        return mu, nn.functional.softplus(s) + 1e-3


data = simulate(3600)
loader = DataLoader(TensorDataset(data), batch_size=8, shuffle=True, drop_last=True)
test = simulate(200)
net = Forecaster()
nll = nn.GaussianNLLLoss(reduction="mean", eps=1e-6)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-10)
ACCUM, UPDATES = 2, 220
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=110, eta_min=2e-5)

running = 0.0
for i, (x,) in enumerate(loader):
    update, micro = divmod(i, ACCUM)
    if update == UPDATES:
        break
    mu, sd = net(x[:, :-1])
    loss = nll(mu, x[:, -1], sd ** 2) / ACCUM
    loss.backward()
    running += loss.item()
    if micro == ACCUM - 1:
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        sched.step()
        if (update + 1) % 10 == 0:
            print(f"update {update + 1} nll {running / 10:+.4f} lr {opt.param_groups[0]['lr']:.1e}", flush=True)
            running = 0.0

net.eval()
with torch.no_grad():
    mu, sd = net(test[:, :-1])
rmse = (mu - test[:, -1]).pow(2).mean().sqrt().item()
persist = (test[:, -2] - test[:, -1]).pow(2).mean().sqrt().item()
w = torch.arange(H * W) % W < W // 2
print(f"rmse {rmse:.3f} persistence {persist:.3f}; spread west {sd[:, w].mean():.3f} east {sd[:, ~w].mean():.3f}")
