import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
TOKENS, DIM, DEPTH, HEADS = 12, 48, 2, 4


def strokes(n, seed):
    rng = np.random.default_rng(seed)
    s = np.linspace(-1, 1, TOKENS)
    out = np.zeros((n, TOKENS, 2))
    for i in range(n):
        kind = rng.integers(3)
        if kind == 0:
            ph = s * np.pi / 2 + rng.uniform(-0.3, 0.3)
            out[i] = np.stack([np.sin(ph), np.cos(ph)], 1) * 1.4
        elif kind == 1:
            out[i] = np.stack([s * 1.6, 1.2 * ((np.arange(TOKENS) % 2) * 2 - 1)], 1)
        else:
            out[i] = np.stack([s * 1.2, s * 1.6 * rng.choice([-1, 1])], 1)
    out += rng.normal(0, 0.04, out.shape)
    return torch.tensor(out / out.std(), dtype=torch.float32)


class LinearFunction(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x.bfloat16(), weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows, x = grad.flatten(0, -2), x.float().flatten(0, -2)
        return grad @ weight, x.t() @ rows, rows.sum(0)


class LeanLinear(nn.Linear):
    def forward(self, x):
        return LinearFunction.apply(x, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (LeanLinear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.n2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.attn = Attention(dim, heads)
        self.ff = nn.Sequential(LeanLinear(dim, dim), nn.SiLU(), LeanLinear(dim, dim))
        self.ada = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c).unsqueeze(1).chunk(6, dim=-1)
        x = x + g1 * self.attn(self.n1(x) * (1 + s1) + b1)
        return x + g2 * self.ff(self.n2(x) * (1 + s2) + b2)


class VelocityNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, DIM)
        self.pos = nn.Parameter(torch.randn(1, TOKENS, DIM) * 0.3)
        self.time = nn.Sequential(nn.Linear(32, DIM), nn.SiLU(), LeanLinear(DIM, DIM))
        self.blocks = nn.ModuleList(DiTBlock(DIM, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Sequential(LeanLinear(DIM, DIM), nn.SiLU(), nn.Linear(DIM, 2))

    def time_embedding(self, t):
        f = torch.exp(torch.arange(16) * (-math.log(200.0) / 16)) * 30
        e = torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], -1)
        return self.time(e)

    def forward(self, x, t):
        c = self.time_embedding(t)
        h = self.lift(x) + self.pos
        for blk in self.blocks:
            h = blk(h, c)
        return self.head(self.norm(h))


@torch.no_grad()
def sample(net, n, steps=20):
    x = torch.randn(n, TOKENS, 2)
    for i in range(steps):
        t = torch.full((n,), (i + 0.5) / steps)
        x = x + net(x, t) / steps
    return x


def main(steps=300, batch=48):
    data = strokes(3000, 1)
    net = VelocityNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 25))
    ema = None
    for step in range(steps):
        x1 = data[torch.randint(0, len(data), (batch,))]
        x0 = torch.randn_like(x1)
        t = torch.rand(batch)
        xt = torch.lerp(x0, x1, t[:, None, None])
        loss = ((net(xt, t) - (x1 - x0)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        warm.step()
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if step % 25 == 0 or step == steps - 1:
            print(f"step {step:4d}  fm loss {ema:.4f}")
    gen = sample(net, 200)
    ref = strokes(600, 9)
    d = torch.cdist(gen.flatten(1), ref.flatten(1)).min(1).values.mean()
    print(f"mean distance of samples to nearest real stroke {d:.3f}")


if __name__ == "__main__":
    main()
