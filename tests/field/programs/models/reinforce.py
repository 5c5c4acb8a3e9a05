"""REINFORCE: many forward passes of one sample, actions drawn from the model, one backward pass an episode."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.distributions import Categorical
from toy import DEVICE, finish, seed

seed()
policy = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2)).to(DEVICE)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(12):
    state, rewards, log_chances = torch.randn(4).to(DEVICE), [], []
    for _ in range(random.randint(5, 10)):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        log_chances.append(choice.log_prob(action))
        state = torch.tanh(state + 0.3 * (action - 0.5) + 0.1 * torch.randn_like(state))
        rewards.append(-state.abs().sum().item())
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.insert(0, reward + 0.9 * (returns[0] if returns else 0.0))
    values = torch.tensor(returns, device=DEVICE)
    values = (values - values.mean()) / (values.std() + 1e-6)
    loss = -(torch.stack(log_chances) * values).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, len(rewards), repr(loss.item()))
finish(policy, optimizer)
