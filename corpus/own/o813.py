import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm as sn

torch.manual_seed(0)
torch.set_num_threads(1)

MODES = torch.zeros(4, 8, 8)
for i in range(2):
    MODES[i, 4 * i + 1:4 * i + 3, :] = 1.0
    MODES[2 + i, :, 4 * i + 1:4 * i + 3] = 1.0


def real_batch(n):
    k = torch.randint(0, 4, (n,))
    img = MODES[k] * (0.8 + 0.2 * torch.rand(n, 1, 1)) + 0.05 * torch.randn(n, 8, 8)
    return (img * 2 - 1).unsqueeze(1)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(c, c // 2, 1) for _ in range(3))
        self.o = nn.Conv2d(c // 2, c, 1)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (f(x).flatten(2) for f in (self.q, self.k, self.v))
        a = torch.einsum("bcn,bcm->bnm", q, k).softmax(-1)
        y = torch.einsum("bnm,bcm->bcn", a, v).view(b, -1, h, w)
        return x + self.gamma * self.o(y)


class G(nn.Module):
    def __init__(self, z=16, c=16):
        super().__init__()
        self.fc = nn.Linear(z, c * 4)
        self.c1 = nn.Conv2d(c, c, 3, padding=1); self.b1 = nn.BatchNorm2d(c)
        self.c2 = nn.Conv2d(c, c, 3, padding=1); self.b2 = nn.BatchNorm2d(c)
        self.att = Attn(c)
        self.out = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, z):
        h = F.relu(self.fc(z)).view(len(z), -1, 2, 2)
        h = F.relu(self.b1(self.c1(F.interpolate(h, scale_factor=2))))
        h = self.att(h)
        h = F.relu(self.b2(self.c2(F.interpolate(h, scale_factor=2))))
        return torch.tanh(self.out(h))


class D(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.c1 = sn(nn.Conv2d(1, c, 4, 2, 1))
        self.att = Attn(c)
        self.c2 = sn(nn.Conv2d(c, 2 * c, 4, 2, 1))
        self.fc = sn(nn.Linear(2 * c * 4, 1))

    def forward(self, x):
        h = self.att(F.leaky_relu(self.c1(x), 0.2))
        return self.fc(F.leaky_relu(self.c2(h), 0.2).flatten(1)).squeeze(1)


g, d = G(), D()
og = torch.optim.Adam(g.parameters(), lr=6e-4, betas=(0.0, 0.9))
od = torch.optim.Adam(d.parameters(), lr=1.5e-3, betas=(0.0, 0.9))
avg = torch.optim.swa_utils.AveragedModel(
    g, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98), use_buffers=True)


@torch.no_grad()
def report(net):
    was = net.training
    net.eval()
    x = (net(torch.randn(256, 16)).squeeze(1) + 1) / 2
    net.train(was)
    dist = (x[:, None] - 0.9 * MODES[None]).pow(2).mean((2, 3))
    best, idx = dist.min(1)
    ok = best < 0.04
    return ok.float().mean().item(), idx[ok].unique().numel(), best.mean().item()


for it in range(400):
    x = real_batch(48)
    fake = g(torch.randn(48, 16)).detach()
    ld = F.relu(1 - d(x)).mean() + F.relu(1 + d(fake)).mean()
    od.zero_grad(); ld.backward(); od.step()

    lg = -d(g(torch.randn(48, 16))).mean()
    og.zero_grad(); lg.backward(); og.step()
    avg.update_parameters(g)
    if it % 80 == 0 or it == 399:
        good, modes, dist = report(avg)
        print(f"{it:4d} d {ld.item():.3f} g {lg.item():+.3f} | on-mode {good:.2f} modes {modes}/4 dist {dist:.4f}")
