import math
import numpy as np
import torch
import torch.nn as nn

SPAN = 40


def oscillators(n, rng):
    t = np.arange(SPAN + 1)
    w, ph = rng.uniform(0.15, 0.6, (n, 1)), rng.uniform(0, 6.28, (n, 1))
    amp = rng.uniform(0.2, 0.6, (n, 1))
    x = amp * np.sin(w * t + ph)
    noise = 0.01 + 0.05 * (x > 0.2)
    return torch.tensor(x + noise * rng.standard_normal(x.shape), dtype=torch.float32)


class CausalConv(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.left = 2 * dilation
        self.conv = nn.Conv1d(ch, 2 * ch, 3, dilation=dilation)
        self.mix = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        a, b = self.conv(nn.functional.pad(x, (self.left, 0))).chunk(2, 1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class WaveForecaster(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.inp = nn.Conv1d(1, ch, 1)
        self.stack = nn.Sequential(*[CausalConv(ch, 2 ** i) for i in range(4)])
        self.out = nn.Conv1d(ch, 2, 1)

    def forward(self, x):
        mu, raw = self.out(self.stack(self.inp(x.unsqueeze(1)))).unbind(1)
        return x + mu, raw.clamp(-7, 3)


def nll(mu, log_sd, y):
    return (log_sd + 0.5 * ((y - mu) * (-log_sd).exp()) ** 2 + 0.5 * math.log(2 * math.pi)).mean()


rng = np.random.default_rng(11)
torch.manual_seed(11)
train, val = oscillators(3000, rng), oscillators(400, rng)
net = WaveForecaster()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(320):
    w = train[torch.randint(0, len(train), (32,))]
    loss = nll(*net(w[:, :-1]), w[:, 1:])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 319:
        print(f"step {step} nll {loss.item():.4f}", flush=True)
with torch.no_grad():
    print(f"validation nll {nll(*net(val[:, :-1]), val[:, 1:]).item():.4f}")
