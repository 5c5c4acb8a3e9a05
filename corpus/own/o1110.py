import math
from dataclasses import dataclass

import torch
from torch import autograd, nn, optim


@dataclass
class GanConfig:
    modes: int = 8
    noise: int = 8
    hidden: int = 80
    batch: int = 128
    critic_steps: int = 3
    generator_steps: int = 600
    penalty: float = 0.1
    lr: float = 1e-3


def ring(n, modes, g):
    k = torch.randint(0, modes, (n,), generator=g)
    angle = 2 * math.pi * k / modes
    centre = torch.stack([angle.cos(), angle.sin()], 1)
    return centre + 0.12 * torch.randn(n, 2, generator=g)


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def gradient_penalty(critic, real, fake):
    eps = torch.rand(len(real), 1)
    mix = (eps * real + (1 - eps) * fake).requires_grad_()
    grad, = autograd.grad(critic(mix).sum(), mix, create_graph=True)
    return (grad.norm(dim=1) - 1).pow(2).mean()


class WGAN:
    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = mlp([cfg.noise, cfg.hidden, cfg.hidden, 2])
        self.critic = mlp([2, cfg.hidden, cfg.hidden, 1])
        self.g_opt = optim.Adam(self.gen.parameters(), lr=cfg.lr, betas=(0.0, 0.9))
        self.c_opt = optim.Adam(self.critic.parameters(), lr=cfg.lr, betas=(0.0, 0.9))
        self.data = torch.Generator().manual_seed(17)

    def fake(self, n):
        return self.gen(torch.randn(n, self.cfg.noise))

    def critic_step(self):
        real = ring(self.cfg.batch, self.cfg.modes, self.data)
        with torch.no_grad():
            fake = self.fake(self.cfg.batch)
        gap = self.critic(fake).mean() - self.critic(real).mean()
        loss = gap + self.cfg.penalty * gradient_penalty(self.critic, real, fake)
        self.c_opt.zero_grad()
        loss.backward()
        self.c_opt.step()
        return loss.item()

    def generator_step(self):
        for p in self.critic.parameters():
            p.requires_grad_(False)
        loss = -self.critic(self.fake(self.cfg.batch)).mean()
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()
        for p in self.critic.parameters():
            p.requires_grad_(True)
        return loss.item()

    @torch.no_grad()
    def report(self):
        x = self.fake(1000)
        angle = 2 * math.pi * torch.arange(self.cfg.modes) / self.cfg.modes
        centres = torch.stack([angle.cos(), angle.sin()], 1)
        dist, idx = torch.cdist(x, centres).min(1)
        good = dist < 0.3
        return good.float().mean().item(), len(idx[good].unique())


def main():
    torch.manual_seed(0)
    cfg = GanConfig()
    gan = WGAN(cfg)
    for step in range(1, cfg.generator_steps + 1):
        for _ in range(cfg.critic_steps):
            c = gan.critic_step()
        g = gan.generator_step()
        if step % 50 == 0 or step == 1:
            share, modes = gan.report()
            print(f"step {step:4d} critic {c:+.4f} generator {g:+.4f} near a mode {share:.2f} modes {modes}", flush=True)


if __name__ == "__main__":
    main()
