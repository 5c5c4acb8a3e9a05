import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(12)
torch.set_default_dtype(torch.float64)


def friedman(n):
    x = torch.rand(n, 6)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y + 0.3 * torch.randn(n)


class ColumnAttention(nn.Module):
    def __init__(self, cols, d=16, heads=2):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(cols + 1, d) * 0.5)
        self.shift = nn.Parameter(torch.randn(cols + 1, d) * 0.5)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, d))
        self.attn2 = nn.MultiheadAttention(d, heads, batch_first=True)
        self.read = nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        x = torch.cat([x.new_ones(len(x), 1), x], 1)
        t = torch.tanh(x.unsqueeze(-1) * self.scale + self.shift)
        n = self.n1(t)
        t = t + self.attn(n, n, n, need_weights=False)[0]
        t = t + self.mlp(self.n2(t))
        c = self.attn2(t[:, :1], t, t, need_weights=False)[0] + t[:, :1]
        return self.read(c).squeeze(-1).squeeze(-1)


xtr, ytr = friedman(400)
xte, yte = friedman(400)
mean, std = ytr.mean(), ytr.std()
ztr = (ytr - mean) / std
model = ColumnAttention(6)
opt = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=10, history_size=20, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    opt.zero_grad()
    loss = F.mse_loss(model(xtr), ztr)
    loss = loss + 1e-5 * sum(p.pow(2).sum() for p in model.parameters())
    loss.backward()
    return loss


for it in range(42):
    loss = opt.step(closure)
    if it % 3 == 0 or it == 41:
        with torch.no_grad():
            pred = model(xte) * std + mean
            r2 = 1 - (pred - yte).pow(2).sum() / (yte - yte.mean()).pow(2).sum()
        print(f"outer {it:2d} evals {calls:4d} objective {loss.item():.5f} test R2 {r2:.4f}")
