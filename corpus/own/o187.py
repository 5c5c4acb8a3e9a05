import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(64)


class JumpReLU(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        return x * (x > self.threshold)


class FeedForward(nn.Module):
    def __init__(self, dim, mult, threshold):
        super().__init__()
        self.w1 = nn.Linear(dim, mult * dim)
        self.act = JumpReLU(threshold)
        self.w2 = nn.Linear(mult * dim, dim)

    def forward(self, x):
        return self.w2(self.act(self.w1(x)))


class SetRegressor(nn.Module):
    def __init__(self, n_in, dim=48, depth=3, threshold=3.0):
        super().__init__()
        self.lift = nn.Linear(n_in, dim)
        self.query = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.ffs = nn.ModuleList([FeedForward(dim, 4, threshold) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.pool = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.lift(x)
        for n, f in zip(self.norms, self.ffs):
            h = h + f(n(h))
        z, _ = self.pool(self.query.expand(len(x), -1, -1), h, h)
        return self.out(z[:, 0]).squeeze(-1)


def make(n):
    x = torch.rand(n, 10, 3) * 4 - 2
    y = (x[..., 0] * x[..., 1] + torch.sin(2 * x[..., 2])).mean(1)
    return x, y * 2.0


def main():
    model = SetRegressor(3)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    vx, vy = make(400)
    for i in range(250):
        x, y = make(48)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 25 == 0 or i == 249:
            with torch.no_grad():
                v = F.mse_loss(model(vx), vy).item()
            print(f"{i:3d} train_mse={loss.item():.4f} val_mse={v:.4f}")


main()
