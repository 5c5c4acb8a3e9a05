import argparse

import torch
import torch.nn as nn


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=24)
    p.add_argument("--accum_iter", type=int, default=1)
    p.add_argument("--blr", type=float, default=1.5e-4)
    p.add_argument("--mask_ratio", type=float, default=0.6)
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--patch", type=int, default=4)
    p.add_argument("--img", type=int, default=20)
    return p.parse_args([])


args = options()
torch.manual_seed(110)
SIDE = args.img // args.patch
NUM = SIDE * SIDE
PIX = args.patch ** 2


def fields(n):
    g = torch.linspace(-1, 1, args.img)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    a, b = 4 * torch.rand(n, 1, 1) - 2, 4 * torch.rand(n, 1, 1) - 2
    cx, cy = torch.rand(n, 1, 1) - 0.5, torch.rand(n, 1, 1) - 0.5
    bump = torch.exp(-6 * ((xx - cx) ** 2 + (yy - cy) ** 2))
    return a * xx + b * yy + 2.5 * bump + 0.05 * torch.randn(n, args.img, args.img)


def patchify(x):
    p = args.patch
    return x.view(-1, SIDE, p, SIDE, p).transpose(2, 3).reshape(-1, NUM, p * p)


def stack(d, depth):
    layer = nn.TransformerEncoderLayer(d, 4, 3 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(d), enable_nested_tensor=False)


class MaskedAutoencoder(nn.Module):
    def __init__(self, d=64, dd=48):
        super().__init__()
        self.embed = nn.Linear(PIX, d)
        self.pos = nn.Parameter(torch.randn(1, NUM, d) * 0.2)
        self.enc = stack(d, 2)
        self.to_dec = nn.Linear(d, dd)
        self.mask_token = nn.Parameter(torch.randn(1, 1, dd) * 0.02)
        self.dec_pos = nn.Parameter(torch.randn(1, NUM, dd) * 0.2)
        self.dec = stack(dd, 1)
        self.pred = nn.Linear(dd, PIX)

    def forward(self, imgs, ratio):
        target = patchify(imgs)
        n, l, _ = target.shape
        keep = int(l * (1 - ratio))
        order = torch.rand(n, l).argsort(1)
        restore = order.argsort(1)
        x = self.embed(target) + self.pos
        x = x.gather(1, order[:, :keep, None].expand(-1, -1, x.size(-1)))
        z = self.to_dec(self.enc(x))
        z = torch.cat([z, self.mask_token.expand(n, l - keep, -1)], 1)
        z = z.gather(1, restore[..., None].expand(-1, -1, z.size(-1)))
        out = self.pred(self.dec(z + self.dec_pos))
        hidden = torch.ones(n, l)
        hidden[:, :keep] = 0
        hidden = hidden.gather(1, restore)
        err = ((out - target) ** 2).mean(-1)
        return (err * hidden).sum() / hidden.sum()


model = MaskedAutoencoder()
lr = args.blr * args.batch_size * args.accum_iter / 256
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.05)
warmup = 20
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warmup))
meter = []
for step in range(args.steps):
    loss = model(fields(args.batch_size), args.mask_ratio)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    meter.append(loss.item())
    if step % 20 == 0 or step == args.steps - 1:
        recent = meter[-10:]
        print(f"step {step:3d} mse {sum(recent) / len(recent):.4f} lr {schedule.get_last_lr()[0]:.2e}")
