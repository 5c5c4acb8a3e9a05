import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)
P, G, D = 4, 5, 64
N = G * G


def texture(n, g):
    yy, xx = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    a = 6.283 * torch.rand(n, 1, 1, generator=g)
    f = 0.25 + 0.35 * torch.rand(n, 1, 1, generator=g)
    ph = 6.283 * torch.rand(n, 1, 1, generator=g)
    return torch.sin(f * (xx * a.cos() + yy * a.sin()) + ph)


def patchify(x):
    return x.unfold(1, P, P).unfold(2, P, P).reshape(len(x), N, P * P)


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        blk = lambda: nn.TransformerEncoderLayer(D, 4, 128, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.embed = nn.Linear(P * P, D)
        self.pos = nn.Parameter(0.2 * torch.randn(N, D))
        self.encoder = nn.ModuleList([blk(), blk()])
        self.token = nn.Parameter(torch.zeros(D))
        self.decoder = nn.ModuleList([blk()])
        self.pix = nn.Linear(D, P * P)

    def forward(self, patches, g, ratio=0.72):
        b = len(patches)
        keep = int(N * (1 - ratio))
        order = torch.rand(b, N, generator=g).argsort(1)
        vis = order[:, :keep]
        tok = self.embed(patches) + self.pos
        h = tok.gather(1, vis[..., None].expand(-1, -1, D))
        for l in self.encoder:
            h = l(h)
        full = self.token.expand(b, N, D).scatter(1, vis[..., None].expand(-1, -1, D), h) + self.pos
        for l in self.decoder:
            full = l(full)
        hidden = torch.ones(b, N).scatter(1, vis, 0.0)
        return self.pix(full), hidden


g = torch.Generator().manual_seed(2)
net = MAE()
opt = torch.optim.AdamW(net.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
MICRO, STEPS = 3, 300
opt.zero_grad()
for k in range(STEPS * MICRO):
    patches = patchify(texture(20, g))
    pred, hidden = net(patches, g)
    loss = ((pred - patches).square().mean(-1) * hidden).sum() / hidden.sum()
    (loss / MICRO).backward()
    if (k + 1) % MICRO:
        continue
    s = k // MICRO
    for group in opt.param_groups:
        group["lr"] = 2.5e-3 * min((s + 1) / 40, ((STEPS - s) / (STEPS - 40)) ** 0.5)
    opt.step()
    opt.zero_grad()
    if s % 30 == 0:
        print("step", s, "masked mse %.4f" % loss.item())
with torch.no_grad():
    patches = patchify(texture(400, g))
    pred, hidden = net(patches, g)
    mse = ((pred - patches).square().mean(-1) * hidden).sum() / hidden.sum()
print("held-out masked mse %.4f pixel variance %.4f" % (mse.item(), patches.var().item()))
