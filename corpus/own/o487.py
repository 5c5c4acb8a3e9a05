import math
import torch
from torch import nn
from torch.nn.functional import softplus

torch.manual_seed(0)
Z, B, STEPS = 8, 256, 500


def real(n):
    k = torch.randint(0, 8, (n,)).float() * (2 * math.pi / 8)
    return torch.stack([k.cos(), k.sin()], 1) * 2 + 0.1 * torch.randn(n, 2)


def energy_distance(a, b):
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(Z, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, n):
        return self.f(torch.randn(n, Z))


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(2, 128), nn.LeakyReLU(0.2), nn.Linear(128, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, x):
        return self.f(x).squeeze(1)


gen, dis = G(), D()
og = torch.optim.Adam(gen.parameters(), lr=5e-4, betas=(0.5, 0.9))
od = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.5, 0.9))
avg = [p.detach().clone() for p in gen.parameters()]

for step in range(STEPS):

    x = real(B).requires_grad_(True)
    with torch.no_grad():
        fake = gen(B)
    dr, df = dis(x), dis(fake)
    d_loss = softplus(-dr).mean() + softplus(df).mean()
    (gx,) = torch.autograd.grad(dr.sum(), x, create_graph=True)
    r1 = gx.pow(2).sum(1).mean()
    od.zero_grad()
    (d_loss + 0.05 * r1).backward()
    od.step()


    g_loss = softplus(-dis(gen(B))).mean()
    og.zero_grad()
    g_loss.backward()
    og.step()
    for a, p in zip(avg, gen.parameters()):
        a.lerp_(p.detach(), 0.02)

    if step % 50 == 0 or step == STEPS - 1:
        with torch.no_grad():
            live = [p.detach().clone() for p in gen.parameters()]
            for p, a in zip(gen.parameters(), avg):
                p.copy_(a)
            ed = energy_distance(gen(2000), real(2000))
            for p, l in zip(gen.parameters(), live):
                p.copy_(l)
        print(f"step {step:4d}  loss_D {d_loss.item():.3f}  loss_G {g_loss.item():.3f}  r1 {r1.item():.3f}  energy dist {ed:.4f}")
