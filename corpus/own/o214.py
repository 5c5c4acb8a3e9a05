import inspect
import typing

import torch
import torch.nn as nn
import torch.nn.functional as F
import unittest.mock as mock


class Lion:
    def __init__(self, params, lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.b1, self.b2, self.wd = lr, betas[0], betas[1], weight_decay
        self.m = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.detach_()

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.m):
            if p.grad is None:
                continue
            p.mul_(1 - self.lr * self.wd)
            u = (self.b1 * m + (1 - self.b1) * p.grad).sign_()
            p.add_(u, alpha=-self.lr)
            m.mul_(self.b2).add_(p.grad, alpha=1 - self.b2)


class ALiBiAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        slopes = 2.0 ** (-8.0 * torch.arange(1, h + 1) / h)
        self.register_buffer("slopes", slopes.view(h, 1, 1))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.reshape(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(x).split(d, -1))
        pos = torch.arange(t)
        dist = (pos[None, :] - pos[:, None]).float()
        bias = (self.slopes * dist).masked_fill(dist > 0, float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Net(nn.Module):
    def __init__(self, vocab, d=72, h=4, depth=2):
        super().__init__()
        self.inp = nn.Embedding(vocab, d)
        self.att = nn.ModuleList([ALiBiAttention(d, h) for _ in range(depth)])
        self.ffn = nn.ModuleList([nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d)) for _ in range(depth)])
        self.pre = nn.ModuleList([nn.LayerNorm(d) for _ in range(depth)])
        self.post = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)

    def forward(self, s):
        x = self.inp(s)
        for a, f, n in zip(self.att, self.ffn, self.pre):
            x = x + a(n(x))
            x = x + f(x)
        return self.out(self.post(x))


torch.manual_seed(77)
corpus = (inspect.getsource(typing) + inspect.getsource(mock)).encode("ascii", "ignore")
data = torch.frombuffer(bytearray(corpus), dtype=torch.uint8).long()
net = Net(128)
opt = Lion(net.parameters(), lr=4e-4, weight_decay=0.1)
T, B = 48, 16
for it in range(240):
    start = torch.randint(data.numel() - T, (B, 1))
    chunk = data[start + torch.arange(T)]
    logits = net(chunk[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 20 == 0 or it == 239:
        print("it", it, "nats/byte", round(loss.item(), 4))
