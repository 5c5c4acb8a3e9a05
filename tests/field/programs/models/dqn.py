"""Deep Q-learning: a replay buffer of tensors, a target network, `random` beside torch, clamped gradients."""

from __future__ import annotations

import collections
import copy
import random

import torch
import torch.nn.functional as F
from torch import nn
from toy import DEVICE, finish, seed

seed()
network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).to(DEVICE)
target = copy.deepcopy(network)
optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-3)
memory: collections.deque = collections.deque(maxlen=100)
state, score = torch.randn(4).to(DEVICE), 0.0
for step in range(100):
    with torch.no_grad():
        greedy = network(state).argmax().item()
    action = random.randrange(2) if random.random() < 0.2 else greedy
    following = torch.tanh(state + 0.1 * torch.randn(4).to(DEVICE) + 0.1 * (action - 0.5))
    reward = -following.abs().sum().item()
    score += reward
    memory.append((state, action, reward, following))
    state = following
    if len(memory) >= 32 and step % 4 == 0:
        states, actions, rewards, next_states = zip(*random.sample(memory, 32))
        with torch.no_grad():
            best = target(torch.stack(next_states)).max(1).values
            wanted = torch.tensor(rewards, device=DEVICE) + 0.9 * best
        chosen = torch.tensor(actions, device=DEVICE)[:, None]
        loss = F.smooth_l1_loss(network(torch.stack(states)).gather(1, chosen)[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        for parameter in network.parameters():
            parameter.grad.clamp_(-1, 1)
        optimizer.step()
        print(step, repr(loss.item()), repr(score))
    if step % 20 == 0:
        target.load_state_dict(network.state_dict())
finish(network, target, optimizer)
