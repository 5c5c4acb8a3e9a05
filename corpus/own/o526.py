import math

import torch
from torch import nn, autograd

torch.manual_seed(14)
Z, BATCH, N_CRITIC, G_STEPS, LAMBDA = 4, 256, 3, 150, 1.0

centres = torch.stack([torch.tensor([math.cos(2 * math.pi * k / 8), math.sin(2 * math.pi * k / 8)]) for k in range(8)])


def real(n):
    return centres[torch.randint(8, (n,))] * 1.5 + 0.08 * torch.randn(n, 2)


def mlp(i, o, act, width=96, depth=3):
    layers = []
    for k in range(depth):
        layers += [nn.Linear(i if k == 0 else width, width), act()]
    return nn.Sequential(*layers, nn.Linear(width, o))


G = mlp(Z, 2, nn.ReLU)
C = mlp(2, 1, lambda: nn.LeakyReLU(0.2))
opt_g = torch.optim.Adam(G.parameters(), lr=3e-3, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(C.parameters(), lr=3e-3, betas=(0.0, 0.9))
sched_g = torch.optim.lr_scheduler.LinearLR(opt_g, 1.0, 0.05, total_iters=G_STEPS)
sched_c = torch.optim.lr_scheduler.LinearLR(opt_c, 1.0, 0.05, total_iters=G_STEPS * N_CRITIC)


def gradient_penalty(x_real, x_fake):
    a = torch.rand(len(x_real), 1)
    mid = (a * x_real + (1 - a) * x_fake).requires_grad_(True)
    grad, = autograd.grad(C(mid).sum(), mid, create_graph=True)
    return (grad.norm(2, dim=1) - 1).square().mean()


def critic_step():
    x = real(BATCH)
    with torch.no_grad():
        fake = G(torch.randn(BATCH, Z))
    gap = C(x).mean() - C(fake).mean()
    loss = -gap + LAMBDA * gradient_penalty(x, fake)
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    sched_c.step()
    return loss.item(), gap.item()


def generator_step():
    C.requires_grad_(False)
    loss = -C(G(torch.randn(BATCH, Z))).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
    sched_g.step()
    C.requires_grad_(True)
    return loss.item()


@torch.no_grad()
def score(n=1000):
    a, b = G(torch.randn(n, Z)), real(n)
    ed = 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
    d, which = torch.cdist(a, centres * 1.5).min(1)
    modes = (torch.bincount(which[d < 0.3], minlength=8) > n / 80).sum()
    return ed.item(), modes.item(), (d < 0.3).float().mean().item()


print("start: energy distance %.4f, modes %d, near a mode %.2f" % score())
for it in range(G_STEPS):
    for _ in range(N_CRITIC):
        lc, gap = critic_step()
    lg = generator_step()
    if it % 15 == 0 or it == G_STEPS - 1:
        ed, modes, near = score()
        print(f"it {it:3d} critic loss {lc:+.4f} wasserstein est. {gap:.4f} gen loss {lg:+.4f} | energy distance {ed:.4f} modes {modes} near {near:.2f}")
