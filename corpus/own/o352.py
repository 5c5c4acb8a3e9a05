import math

import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy, softplus

torch.manual_seed(55)
CHANNELS, LENGTH, STATES = 6, 32, 12


def simulate(n):
    state = torch.randint(STATES, (n,))
    level, rhythm = state // 3, state % 3
    t = torch.arange(LENGTH).float()
    base = torch.randn(n, LENGTH, CHANNELS) * 0.6
    base[..., 0] += (level.float() - 1.5)[:, None] * 0.8
    base[..., 3] -= (level.float() - 1.5)[:, None] * 0.5
    phase = torch.rand(n, 1) * 2 * math.pi
    base[..., 1] += 2 * torch.sin(t * (0.3 + 0.5 * rhythm.float())[:, None] + phase)
    return base, state


class Norm(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(var + self.eps) * self.gain + self.bias


class SensorBlock(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.norm_in = Norm(features)
        self.attend = nn.MultiheadAttention(features, heads, batch_first=True)
        self.norm_ff = Norm(features)
        self.expand = nn.Linear(features, 3 * features)
        self.reduce = nn.Linear(3 * features, features)

    def forward(self, x):
        y = self.norm_in(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + self.reduce(softplus(self.expand(self.norm_ff(x))))


class SensorNet(nn.Module):
    def __init__(self, features=64, heads=4, depth=2):
        super().__init__()
        self.lift = nn.Linear(CHANNELS, features)
        t = torch.arange(LENGTH)[:, None] * torch.exp(torch.arange(0, features, 2) * (-math.log(200.0) / features))
        self.register_buffer("clock", torch.cat([t.sin(), t.cos()], 1) * 0.3)
        self.stack = nn.Sequential(*(SensorBlock(features, heads) for _ in range(depth)))
        self.norm_out = Norm(features)
        self.readout = nn.Linear(features, STATES)

    def forward(self, x):
        h = self.norm_out(self.stack(self.lift(x) + self.clock))
        return self.readout(h.amax(1))


net = SensorNet()
solver = optim.RAdam(net.parameters(), lr=3e-3)
mean_loss = mean_acc = 0.0
for k in range(180):
    signal, state = simulate(32)
    guess = net(signal)
    loss = cross_entropy(guess, state)
    solver.zero_grad()
    loss.backward()
    solver.step()
    acc = (guess.argmax(1) == state).float().mean().item()
    if k == 0:
        print(f"update {k} loss {loss.item():.3f} acc {acc:.3f}")
    mean_loss, mean_acc = mean_loss + loss.item() / 20, mean_acc + acc / 20
    if k % 20 == 19:
        print(f"update {k + 1} loss {mean_loss:.3f} acc {mean_acc:.3f}")
        mean_loss = mean_acc = 0.0
