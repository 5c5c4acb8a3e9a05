"""A DCGAN: two optimizers, two backward passes through one network, BatchNorm statistics that count calls."""

from __future__ import annotations

import torch
from torch import nn
from toy import DEVICE, finish, seed

seed()
generator = nn.Sequential(
    nn.ConvTranspose2d(8, 16, 4),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1),
    nn.Tanh(),
).to(DEVICE)
critic = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1),
    nn.BatchNorm2d(16),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(16, 1, 4),
).to(DEVICE)
criterion = nn.BCEWithLogitsLoss()
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for step in range(10):
    real = torch.randn(8, 1, 8, 8).cumsum(-1).tanh().to(DEVICE)
    label = torch.ones(8, device=DEVICE)
    critic.zero_grad()
    loss_real = criterion(critic(real).view(-1), label)
    loss_real.backward()
    fake = generator(torch.randn(8, 8, 1, 1, device=DEVICE))
    loss_fake = criterion(critic(fake.detach()).view(-1), label.fill_(0))
    loss_fake.backward()
    of_critic.step()
    generator.zero_grad()
    loss_generator = criterion(critic(fake).view(-1), label.fill_(1))
    loss_generator.backward()
    of_generator.step()
    print(step, repr(loss_real.item()), repr(loss_fake.item()), repr(loss_generator.item()))
finish(generator, critic, of_critic, of_generator)
