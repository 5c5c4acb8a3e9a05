import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
rng = np.random.default_rng(11)


def render(n):
    yy, xx = np.mgrid[0:16, 0:16].astype(np.float32)
    xs = np.empty((n, 3, 16, 16), np.float32)
    ys = rng.integers(0, 6, n)
    for i, c in enumerate(ys):
        ang = (c % 3) * math.pi / 3 + rng.normal(0, 0.12)
        freq = 0.7 if c < 3 else 1.3
        ph = rng.uniform(0, 2 * math.pi)
        wave = np.sin(freq * (xx * math.cos(ang) + yy * math.sin(ang)) + ph)
        col = rng.uniform(0.3, 1.0, 3)[:, None, None]
        xs[i] = 110 + 60 * col * wave + rng.normal(0, 45, (3, 16, 16))
    xs = xs / 255.0
    return torch.from_numpy(xs), torch.from_numpy(ys)


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = None
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        h = self.bn2(self.conv2(h))
        return F.relu(h + (x if self.skip is None else self.skip(x)))


class ResNet(nn.Module):
    def __init__(self, width=12, classes=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.layers = nn.Sequential(Block(width, width), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class Callback:
    def on_start(self, tr): pass
    def on_batch_start(self, tr): pass
    def on_batch_end(self, tr): pass
    def on_epoch_end(self, tr): pass


class CosineLR(Callback):
    def __init__(self, base, warmup, total):
        self.base, self.warmup, self.total = base, warmup, total

    def on_batch_start(self, tr):
        s = tr.step
        if s < self.warmup:
            lr = self.base * (s + 1) / self.warmup
        else:
            lr = 0.5 * self.base * (1 + math.cos(math.pi * (s - self.warmup) / (self.total - self.warmup)))
        for g in tr.opt.param_groups:
            g["lr"] = lr


class EMA(Callback):
    def __init__(self, decay=0.97):
        self.decay = decay

    def on_start(self, tr):
        tr.ema = copy.deepcopy(tr.model).eval()
        for p in tr.ema.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def on_batch_end(self, tr):
        d = min(self.decay, (1 + tr.step) / (10 + tr.step))
        for pe, p in zip(tr.ema.parameters(), tr.model.parameters()):
            pe.lerp_(p, 1 - d)
        for be, b in zip(tr.ema.buffers(), tr.model.buffers()):
            be.copy_(b)


class Report(Callback):
    def on_batch_end(self, tr):
        if tr.step % 20 == 0:
            print(f"step {tr.step:4d}  loss {tr.loss:.4f}  lr {tr.opt.param_groups[0]['lr']:.4f}")

    def on_epoch_end(self, tr):
        l, a = tr.evaluate(tr.ema)
        print(f"epoch {tr.epoch}  val loss {l:.4f}  val acc {a:.3f}")


class Trainer:
    def __init__(self, model, opt, train, val, bs, callbacks):
        self.model, self.opt, self.bs, self.callbacks = model, opt, bs, callbacks
        self.train, self.val = train, val
        self.step, self.epoch, self.loss = 0, 0, float("nan")

    def emit(self, name):
        for cb in self.callbacks:
            getattr(cb, name)(self)

    @torch.no_grad()
    def evaluate(self, net):
        net.eval()
        x, y = self.val
        out = torch.cat([net(b) for b in x.split(128)])
        return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()

    def fit(self, epochs):
        self.emit("on_start")
        x, y = self.train
        for self.epoch in range(epochs):
            self.model.train()
            for idx in torch.randperm(len(x)).split(self.bs):
                self.emit("on_batch_start")
                loss = F.cross_entropy(self.model(x[idx]), y[idx], label_smoothing=0.05)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.loss = loss.item()
                self.emit("on_batch_end")
                self.step += 1
            self.emit("on_epoch_end")


if __name__ == "__main__":
    train, val = render(1600), render(512)
    net = ResNet()
    decay = [p for p in net.parameters() if p.ndim > 1]
    plain = [p for p in net.parameters() if p.ndim <= 1]
    opt = torch.optim.SGD([{"params": decay, "weight_decay": 5e-4}, {"params": plain, "weight_decay": 0.0}],
                          lr=0.1, momentum=0.9, nesterov=True)
    epochs, bs = 8, 64
    total = epochs * math.ceil(1600 / bs)
    tr = Trainer(net, opt, train, val, bs, [CosineLR(0.1, 20, total), EMA(), Report()])
    tr.fit(epochs)
    l, a = tr.evaluate(tr.ema)
    print(f"final  val loss {l:.4f}  val acc {a:.3f}")
