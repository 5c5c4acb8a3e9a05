import math
import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE, P, KEEP = 16, 4, 8
N, DIM = (SIDE // P) ** 2, P * P


def textures(n, g):
    y, x = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
    a = torch.rand(n, 1, 1, generator=g) * math.pi
    f = 0.3 + 0.6 * torch.rand(n, 1, 1, generator=g)
    ph = torch.rand(n, 1, 1, generator=g) * 2 * math.pi
    im = torch.sin(2 * math.pi * f * (x * a.cos() + y * a.sin()) + ph)
    tint = 0.5 * torch.randn(n, 1, 1, generator=g)
    return im + tint + 0.05 * torch.randn(n, SIDE, SIDE, generator=g)


def patchify(im):
    return im.unfold(1, P, P).unfold(2, P, P).reshape(-1, N, DIM)


class Rearrange(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(order)
        return x.gather(1, order[..., None].expand_as(x))

    @staticmethod
    def backward(ctx, grad):
        (order,) = ctx.saved_tensors
        return grad.gather(1, order.argsort(1)[..., None].expand_as(grad)), None


class Block(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        w = torch.einsum("bihc,bjhc->bhij", q, k) * q.shape[-1] ** -0.5
        x = x + self.proj(torch.einsum("bhij,bjhc->bihc", w.softmax(-1), v).flatten(2))
        return x + self.mlp(self.ln2(x))


class MAE(nn.Module):
    def __init__(self, d=64, dd=48):
        super().__init__()
        self.embed = nn.Linear(DIM, d)
        self.pos = nn.Parameter(torch.randn(N, d) * 0.2)
        self.enc = nn.Sequential(Block(d), Block(d), nn.LayerNorm(d))
        self.bridge = nn.Linear(d, dd)
        self.blank = nn.Parameter(torch.randn(dd) * 0.1)
        self.dpos = nn.Parameter(torch.randn(N, dd) * 0.2)
        self.dec = nn.Sequential(Block(dd), nn.LayerNorm(dd), nn.Linear(dd, DIM))

    def forward(self, tok, order):
        b = len(tok)
        mixed = Rearrange.apply(self.embed(tok) + self.pos, order)
        seen = self.bridge(self.enc(mixed[:, :KEEP]))
        full = torch.cat([seen, self.blank.expand(b, N - KEEP, -1)], 1)
        full = Rearrange.apply(full, order.argsort(1))
        return self.dec(full + self.dpos)


def hidden_error(net, tok, order):
    out = net(tok, order)
    err = (out - tok).square().mean(-1)
    hidden = order.argsort(1) >= KEEP
    return err[hidden].mean()


def orders(n, g):
    return torch.rand(n, N, generator=g).argsort(1)


def train(steps=320, bs=48):
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(13)
    net = MAE()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.02)
    held, ho = patchify(textures(256, g)), orders(256, g)
    for step in range(steps):
        lr = 2e-3 * min(1.0, (step + 1) / 25) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for grp in opt.param_groups:
            grp["lr"] = lr
        loss = hidden_error(net, patchify(textures(bs, g)), orders(bs, g))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step == steps - 1:
            with torch.no_grad():
                v = hidden_error(net, held, ho)
            print(f"step {step:3d}  train {loss.item():.4f}  held {v.item():.4f}")


if __name__ == "__main__":
    train()
