from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TrainConfig:
    context: int = 64
    horizon: int = 16
    patch: int = 8
    width: int = 64
    depth: int = 2
    heads: int = 4
    steps: int = 500
    batch: int = 32
    lr: float = 1.5e-4
    compute_dtype: torch.dtype = torch.bfloat16
    param_dtype: torch.dtype = torch.bfloat16


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class PatchForecaster(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        n = c.context // c.patch
        self.embed = nn.Linear(c.patch, c.width)
        self.pos = nn.Parameter(torch.randn(n, c.width))
        self.layers = nn.ModuleList(Layer(c.width, c.heads) for _ in range(c.depth))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(n * c.width, c.horizon)

    def forward(self, x):
        x = self.embed(x.unflatten(-1, (-1, self.c.patch))) + self.pos
        for l in self.layers:
            x = l(x)
        return self.head(self.norm(x).flatten(1))


def series(n, c, g):
    t = torch.arange(c.context + c.horizon).float()
    f = 0.02 + 0.03 * torch.rand(n, 1, generator=g)
    ph = 6.28 * torch.rand(n, 2, generator=g)
    y = torch.sin(6.28 * f * t + ph[:, :1]) + 0.5 * torch.sin(6.28 * 0.125 * t + ph[:, 1:])
    y = y + 0.05 * torch.randn(y.shape, generator=g)
    return y[:, :c.context], y[:, c.context:]


def main(c):
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(5)
    model = PatchForecaster(c).to(c.param_dtype)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=0.01)
    for step in range(1, c.steps + 1):
        x, y = series(c.batch, c, g)
        with torch.autocast("cpu", dtype=c.compute_dtype):
            pred = model(x.to(c.param_dtype))
        loss = F.mse_loss(pred.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == 1:
            print(f"step {step:4d} mse {loss.item():.4f}")
    x, y = series(512, c, g)
    with torch.no_grad(), torch.autocast("cpu", dtype=c.compute_dtype):
        pred = model(x.to(c.param_dtype)).float()
    print(f"held-out mse {F.mse_loss(pred, y).item():.4f} naive {y.var().item():.4f}")


main(TrainConfig())
