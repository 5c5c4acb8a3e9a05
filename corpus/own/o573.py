import math
import torch
from torch import Tensor
from torch.func import functional_call

torch.manual_seed(4)
WIN, PATCH, HORIZON = 64, 4, 8
N = WIN // PATCH


def series(n: int, g: torch.Generator) -> Tensor:
    t = torch.arange(WIN + HORIZON).float()
    out = torch.zeros(n, WIN + HORIZON)
    for lo, hi, amp in ((9.0, 14.0, 1.0), (20.0, 40.0, 0.8)):
        period = lo + (hi - lo) * torch.rand(n, 1, generator=g)
        phase = 2 * math.pi * torch.rand(n, 1, generator=g)
        out += amp * torch.sin(2 * math.pi * t / period + phase)
    slope = 0.02 * torch.randn(n, 1, generator=g)
    return out + slope * (t - WIN / 2) + 0.05 * torch.randn(n, WIN + HORIZON, generator=g)


def rotary(x: Tensor, theta: float = 200.0) -> Tensor:
    half = x.shape[-1] // 2
    freq = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    ang = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * freq
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()), -1)


class Mixer(torch.nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.RMSNorm(d)
        self.qkv = torch.nn.Linear(d, 3 * d, bias=False)
        self.out = torch.nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (u.unflatten(-1, (self.heads, -1)).transpose(1, 2) for u in (q, k, v))
        q, k = rotary(q), rotary(k)
        w = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        y = w @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Feed(torch.nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.RMSNorm(d), torch.nn.Linear(d, 3 * d), torch.nn.SiLU(), torch.nn.Linear(3 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class Forecaster(torch.nn.Module):
    def __init__(self, d: int = 64, depth: int = 2):
        super().__init__()
        self.lift = torch.nn.Linear(PATCH, d)
        self.ask = torch.nn.Parameter(torch.randn(1, 1, d))
        self.body = torch.nn.Sequential(*[m for _ in range(depth) for m in (Mixer(d, 4), Feed(d))])
        self.read = torch.nn.Sequential(torch.nn.RMSNorm(d), torch.nn.Linear(d, HORIZON))

    def forward(self, w: Tensor) -> Tensor:
        h = self.lift(w.unflatten(-1, (N, PATCH)))
        h = torch.cat((h, self.ask.expand(len(h), -1, -1)), 1)
        return self.read(self.body(h)[:, -1])


def objective(params: dict, net: torch.nn.Module, batch: Tensor) -> Tensor:
    past, future = batch.split((WIN, HORIZON), 1)
    guess = functional_call(net, params, (past,))
    return torch.nn.functional.huber_loss(guess, future)


def train(steps: int = 280, bs: int = 48, peak: float = 2e-3) -> None:
    g = torch.Generator().manual_seed(9)
    net = Forecaster()
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    opt = torch.optim.Adam(list(params.values()), lr=peak, betas=(0.9, 0.98))
    held = series(512, g)
    for step in range(steps):
        for grp in opt.param_groups:
            grp["lr"] = peak * min((step + 1) / 20, 1.0) * (1.0 - 0.9 * step / steps)
        loss = objective(params, net, series(bs, g))
        for p, gr in zip(params.values(), torch.autograd.grad(loss, list(params.values()))):
            p.grad = gr
        opt.step()
        if step % 28 == 0 or step == steps - 1:
            with torch.no_grad():
                print(f"step {step:3d} | train {loss.item():.4f} | held {objective(params, net, held).item():.4f}")


train()
