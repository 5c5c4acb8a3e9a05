import argparse
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def get_args():
    p = argparse.ArgumentParser("tiny vit")
    p.add_argument("--batch-size", type=int, default=48)
    p.add_argument("--blr", type=float, default=1e-2)
    p.add_argument("--accum-iter", type=int, default=1)
    p.add_argument("--warmup", type=int, default=15)
    p.add_argument("--iters", type=int, default=120)
    p.add_argument("--dim", type=int, default=48)
    return p.parse_args()


class Attention(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), Attention(d)
        self.norm2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, d, depth=3, classes=8):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 17, d) * 0.02)
        self.blocks = nn.Sequential(*[Block(d) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


def gratings(n):
    y = torch.randint(0, 8, (n,))
    ang = (y % 4).float() * math.pi / 4
    f = 0.6 + 0.8 * (y // 4).float()
    r = torch.arange(16.0)
    u = r[None, :, None] * ang.cos()[:, None, None] + r[None, None] * ang.sin()[:, None, None]
    img = torch.sin(f[:, None, None] * u + torch.rand(n, 1, 1) * 6.28)
    return img[:, None] + 0.4 * torch.randn(n, 3, 16, 16), y


def main(args):
    torch.manual_seed(0)
    model = ViT(args.dim)
    eff = args.batch_size * args.accum_iter
    lr = args.blr * eff
    opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.05)
    for it in range(args.iters):
        now = lr * min(1, (it + 1) / args.warmup)
        if it > args.warmup:
            now = lr * 0.5 * (1 + math.cos(math.pi * (it - args.warmup) / (args.iters - args.warmup)))
        for g in opt.param_groups:
            g["lr"] = now
        x, y = gratings(args.batch_size)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 10 == 0 or it == args.iters - 1:
            print(f"iter {it:3d} loss {loss.item():.4f}")


main(get_args())
