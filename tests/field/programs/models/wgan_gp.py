"""A Wasserstein GAN with gradient penalty: a gradient with respect to inputs, and a backward pass through it."""

from __future__ import annotations

import torch
from torch import nn
from toy import DEVICE, finish, seed

seed()
critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(DEVICE)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8)).to(DEVICE)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for step in range(10):
    real = torch.randn(16, 8).to(DEVICE) + 2
    fake = generator(torch.randn(16, 4).to(DEVICE))
    share = torch.rand(16, 1).to(DEVICE)
    between = (share * real + (1 - share) * fake.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    loss_generator = -critic(generator(torch.randn(16, 4).to(DEVICE))).mean()
    of_generator.zero_grad()
    loss_generator.backward()
    of_generator.step()
    print(step, repr(loss.item()), repr(loss_generator.item()))
finish(critic, generator, of_critic, of_generator)
