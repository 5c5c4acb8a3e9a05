import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(47)


def reset(module):
    for p in module.parameters():
        if p.dim() == 2:
            fan_out, fan_in = p.shape
            std = 1.0 / (2.0 / (fan_in + fan_out)) ** 0.5
            nn.init.normal_(p, 0.0, std)


class Rows(nn.Module):
    def __init__(self, features, d=48, heads=4, depth=3):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features, d) * d ** -0.5)
        self.shift = nn.Parameter(torch.randn(features, d) * d ** -0.5)
        self.query = nn.Parameter(torch.zeros(1, 1, d))
        self.att = nn.ModuleList([nn.MultiheadAttention(d, heads, batch_first=True) for _ in range(depth)])
        self.ffn = nn.ModuleList([nn.Sequential(nn.Linear(d, 2 * d), nn.Tanh(), nn.Linear(2 * d, d)) for _ in range(depth)])
        self.n1 = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.n2 = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.out = nn.Linear(d, 1)
        for part in (self.att, self.ffn):
            reset(part)

    def forward(self, x):
        h = x[..., None] * self.scale + self.shift
        h = torch.cat([self.query.expand(len(x), -1, -1), h], 1)
        for a, f, n1, n2 in zip(self.att, self.ffn, self.n1, self.n2):
            z = n1(h)
            h = h + a(z, z, z, need_weights=False)[0]
            h = h + f(n2(h))
        return self.out(h[:, 0]).squeeze(1)


def table(n):
    x = torch.randn(n, 8)
    y = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3] - x[:, 4].abs() + 0.05 * torch.randn(n)
    return x, y


x_train, y_train = table(8000)
x_test, y_test = table(500)
y_mean, y_std = y_train.mean(), y_train.std()
model = Rows(8)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.SmoothL1Loss()
for epoch in range(2):
    order = torch.randperm(len(x_train))
    for i, idx in enumerate(order.split(80)):
        loss = loss_fn(model(x_train[idx]), (y_train[idx] - y_mean) / y_std)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0:
            print(f"epoch {epoch} batch {i:3d} loss {loss.item():.4f}")
with torch.no_grad():
    rmse = (model(x_test) * y_std + y_mean - y_test).pow(2).mean().sqrt()
print(f"test rmse {rmse:.4f} against spread {y_test.std():.4f}")
