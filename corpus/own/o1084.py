import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Cfg:
    length = 96
    patch = 8
    dim = 48
    steps = 260
    labelled = 16
    unlabelled = 32
    lr = 1.5e-3
    ramp = 120
    weight = 2.0


def waves(n):
    kind = torch.randint(4, (n,))
    t = torch.linspace(0, 1, Cfg.length)[None]
    f = torch.empty(n, 1).uniform_(1.5, 4)
    arg = (f * t + torch.rand(n, 1)) % 1.0
    sine = torch.sin(2 * math.pi * arg)
    x = torch.stack([sine, torch.sign(sine), 2 * arg - 1, 1 - 2 * arg], 1)[torch.arange(n), kind]
    return x * torch.empty(n, 1).uniform_(0.7, 1.3), kind


def view(x):
    return x * torch.empty(len(x), 1).uniform_(0.8, 1.2) + 0.25 * torch.randn_like(x)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(Cfg.patch, Cfg.dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, Cfg.length // Cfg.patch, Cfg.dim))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(Cfg.dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(Cfg.dim)
        self.head = nn.Linear(Cfg.dim, 4)

    def forward(self, x):
        h = self.inp(x.view(len(x), -1, Cfg.patch)) + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h).mean(1))


class Trainer:
    def __init__(self):
        torch.manual_seed(6)
        self.student = Classifier()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.student.parameters(), lr=Cfg.lr, weight_decay=0.02)
        self.pool, self.pool_y = waves(400)
        self.step = 0

    @torch.no_grad()
    def track(self):
        tau = min(0.97, 1 - 1 / (self.step + 2))
        for a, b in zip(self.teacher.parameters(), self.student.parameters()):
            a.lerp_(b, 1 - tau)

    def train_step(self):
        idx = torch.randint(len(self.pool), (Cfg.labelled,))
        free, _ = waves(Cfg.unlabelled)
        with torch.no_grad():
            target = self.teacher(view(free)).softmax(-1)
        out = self.student(torch.cat([view(self.pool[idx]), view(free)]))
        ce = F.cross_entropy(out[:Cfg.labelled], self.pool_y[idx])
        consistency = (out[Cfg.labelled:].softmax(-1) - target).square().sum(-1).mean()
        scale = Cfg.weight * math.exp(-5 * (1 - min(1.0, self.step / Cfg.ramp)) ** 2)
        loss = ce + scale * consistency
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.track()
        self.step += 1
        return loss.item(), ce.item(), consistency.item()

    @torch.no_grad()
    def accuracy(self, model):
        x, y = waves(500)
        return (model(view(x)).argmax(-1) == y).float().mean().item()

    def fit(self):
        for i in range(Cfg.steps):
            loss, ce, con = self.train_step()
            if i % 20 == 0 or i == Cfg.steps - 1:
                print(f"step {i:3d} loss {loss:.4f} ce {ce:.4f} consistency {con:.4f}")
            if (i + 1) % 65 == 0:
                print(f"accuracy student {self.accuracy(self.student):.3f} teacher {self.accuracy(self.teacher):.3f}")


Trainer().fit()
