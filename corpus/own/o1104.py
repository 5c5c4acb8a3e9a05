import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--channels", type=int, default=24)
    p.add_argument("--levels", type=int, default=4)
    p.add_argument("--kernel", type=int, default=3)
    p.add_argument("--segment", type=int, default=128)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--sr", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1234)
    return p.parse_args()


class Synth:
    TABLE = np.array([[1, 0, 0, 0, 0, 0], [1, .5, .33, .25, .2, .17], [1, 0, .33, 0, .2, 0],
                      [.3, 1, .2, .6, 0, .1], [.5, .2, 1, .1, .6, 0], [.6, .6, 0, .8, 0, .5]])

    def __init__(self, segment, sr, seed):
        self.n, self.sr = segment, sr
        self.rng = np.random.default_rng(seed)

    def draw(self, batch):
        t = np.arange(self.n) / self.sr
        label = self.rng.integers(0, 6, batch)
        f0 = self.rng.uniform(120, 240, (batch, 1, 1))
        phase = self.rng.uniform(0, 2 * math.pi, (batch, 6, 1))
        partials = np.sin(2 * math.pi * f0 * np.arange(1, 7).reshape(1, 6, 1) * t + phase)
        wave = (self.TABLE[label][:, :, None] * partials).sum(1)
        wave = wave / wave.std(1, keepdims=True) * self.rng.uniform(0.7, 1.3, (batch, 1))
        wave = wave + 0.1 * self.rng.standard_normal(wave.shape)
        return torch.from_numpy(wave).float().unsqueeze(1), torch.from_numpy(label)


class ResUnit(nn.Module):
    def __init__(self, ch, kernel, dilation):
        super().__init__()
        pad = (kernel - 1) * dilation // 2
        self.conv1 = nn.Conv1d(ch, ch, kernel, padding=pad, dilation=dilation)
        self.conv2 = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        return x + self.conv2(F.leaky_relu(self.conv1(F.leaky_relu(x, 0.1)), 0.1))


class TimbreNet(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.pre = nn.Conv1d(1, args.channels, 9, stride=2, padding=4)
        self.units = nn.ModuleList(ResUnit(args.channels, args.kernel, 2 ** i) for i in range(args.levels))
        self.post = nn.Conv1d(args.channels, 6, 1)

    def forward(self, x):
        x = self.pre(x)
        for u in self.units:
            x = u(x)
        return self.post(F.leaky_relu(x, 0.1)).mean(-1)

    def apply_weight_norm(self):
        for m in self.modules():
            if isinstance(m, nn.Conv1d):
                weight_norm(m)
        return self


def main():
    args = parse()
    torch.manual_seed(args.seed)
    data = Synth(args.segment, args.sr, args.seed)
    dev_x, dev_y = Synth(args.segment, args.sr, 4321).draw(256)

    net = TimbreNet(args)
    net.apply_weight_norm()
    optim = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.8, 0.99))
    decay = torch.optim.lr_scheduler.ExponentialLR(optim, gamma=0.997)

    meter = 0.0
    for step in range(1, args.steps + 1):
        x, y = data.draw(args.batch)
        loss = F.cross_entropy(net(x), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        decay.step()
        meter = loss.item() if step == 1 else 0.9 * meter + 0.1 * loss.item()
        if step == 1 or step % 40 == 0:
            with torch.no_grad():
                est = net(dev_x)
            print(f"step {step}/{args.steps} loss {meter:.4f} dev {F.cross_entropy(est, dev_y).item():.4f} "
                  f"acc {(est.argmax(1) == dev_y).float().mean().item():.3f}", flush=True)


if __name__ == "__main__":
    main()
