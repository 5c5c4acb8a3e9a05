import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(14)
S, P, N_CLASS = 32, 4, 6
G = S // P
NP = G * G


def textures(n):
    y = torch.randint(0, N_CLASS, (n,))
    ang = (y % 3).float() * math.pi / 3 + 0.1 * torch.randn(n)
    freq = torch.where(y < 3, 0.2, 0.36) + 0.015 * torch.randn(n)
    ph = torch.rand(n) * 6.28
    v, u = torch.meshgrid(torch.arange(S).float(), torch.arange(S).float(), indexing="ij")
    wave = torch.sin(freq[:, None, None] * (ang.cos()[:, None, None] * u + ang.sin()[:, None, None] * v)
                     + ph[:, None, None])
    return wave[:, None] + 0.1 * torch.randn(n, 1, S, S), y


def patchify(x):
    return x.unfold(2, P, P).unfold(3, P, P).reshape(len(x), NP, P * P)


def sincos2d(d):
    w = 1 / 100 ** (torch.arange(d // 4) / (d // 4))
    yy, xx = torch.meshgrid(torch.arange(G), torch.arange(G), indexing="ij")
    parts = [f(g.flatten()[:, None] * w) for g in (yy, xx) for f in (torch.sin, torch.cos)]
    return torch.cat(parts, 1)[None]


def stack(d, n):
    layer = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, n, nn.LayerNorm(d), enable_nested_tensor=False)


class MAE(nn.Module):
    def __init__(self, d=64, dd=48, keep=0.35):
        super().__init__()
        self.keep = int(NP * keep)
        self.embed, self.to_dec = nn.Linear(P * P, d), nn.Linear(d, dd)
        self.enc_pos = nn.Parameter(sincos2d(d), requires_grad=False)
        self.dec_pos = nn.Parameter(sincos2d(dd), requires_grad=False)
        self.encoder, self.decoder = stack(d, 2), stack(dd, 1)
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, dd))
        self.pixels = nn.Linear(dd, P * P)

    def features(self, img):
        return self.encoder(self.embed(patchify(img)) + self.enc_pos).mean(1)

    def forward(self, img):
        target = patchify(img)
        B = len(img)
        x = self.embed(target) + self.enc_pos
        shuffle = torch.rand(B, NP).argsort(1)
        restore = shuffle.argsort(1)
        take = lambda t, i: t.gather(1, i[..., None].expand(-1, -1, t.size(-1)))
        z = self.to_dec(self.encoder(take(x, shuffle[:, : self.keep])))
        z = torch.cat([z, self.mask_token.expand(B, NP - self.keep, -1)], 1)
        out = self.pixels(self.decoder(take(z, restore) + self.dec_pos))
        hidden = (restore >= self.keep).float()
        err = (out - target).pow(2).mean(-1)
        return (err * hidden).sum() / hidden.sum()


x, y = textures(2400)
xv, yv = textures(400)
mae = MAE()
opt = torch.optim.AdamW([p for p in mae.parameters() if p.requires_grad], lr=2e-3, betas=(0.9, 0.95),
                        weight_decay=0.05)
steps = 300
for s in range(steps):
    lr = 2e-3 * min((s + 1) / 40, 0.5 * (1 + math.cos(math.pi * s / steps)))
    for g in opt.param_groups:
        g["lr"] = lr
    loss = mae(x[torch.randint(0, len(x), (32,))])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 30 == 0 or s == steps - 1:
        print(f"mae step {s:3d} masked-patch loss {loss.item():.4f}")

with torch.no_grad():
    f, fv = mae.features(x), mae.features(xv)
    mu, sd = f.mean(0), f.std(0) + 1e-6
    f, fv = (f - mu) / sd, (fv - mu) / sd
probe = nn.Linear(f.size(1), N_CLASS)
opt = torch.optim.SGD(probe.parameters(), lr=0.1, momentum=0.9)
for s in range(60):
    loss = F.cross_entropy(probe(f), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 15 == 0 or s == 59:
        acc = (probe(fv).argmax(-1) == yv).float().mean()
        print(f"probe {s:2d} ce {loss.item():.4f} val acc {acc.item():.3f}")
