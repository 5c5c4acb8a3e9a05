import math
import inspect
import typing
import torch
import torch.nn as nn
import torch.nn.functional as F


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, wd = group["lr"], group["weight_decay"]
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - wd)
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-lr)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.w, 1e-6)


class GatedBlock(nn.Module):
    def __init__(self, d, heads, kv_heads):
        super().__init__()
        self.h, self.kv, self.hd = heads, kv_heads, d // heads
        self.q = nn.Linear(d, d, bias=False)
        self.kvp = nn.Linear(d, 2 * kv_heads * self.hd, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate_up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(2 * d, d, bias=False)
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)

    def forward(self, x, bias):
        b, t, d = x.shape
        y = self.n1(x)
        q = self.q(y).view(b, t, self.h, self.hd).transpose(1, 2)
        k, v = self.kvp(y).view(b, t, 2, self.kv, self.hd).permute(2, 0, 3, 1, 4)
        k = k.repeat_interleave(self.h // self.kv, 1)
        v = v.repeat_interleave(self.h // self.kv, 1)
        s = q @ k.transpose(-1, -2) / math.sqrt(self.hd) + bias
        x = x + self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        a, g = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * a)


class LM(nn.Module):
    def __init__(self, vocab, ctx, d=64, depth=2, heads=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(GatedBlock(d, heads, 2) for _ in range(depth))
        self.norm = RMSNorm(d)
        self.out = nn.Linear(d, vocab, bias=False)
        slopes = torch.tensor([2.0 ** -(2 * i + 1) for i in range(heads)])
        dist = torch.arange(ctx)[None, :] - torch.arange(ctx)[:, None]
        bias = slopes[:, None, None] * dist.float()
        self.register_buffer("bias", bias.masked_fill(dist > 0, float("-inf")))

    def forward(self, ids):
        x = self.emb(ids)
        for blk in self.blocks:
            x = blk(x, self.bias)
        return self.out(self.norm(x))


torch.manual_seed(9)
source = inspect.getsource(typing)
chars = sorted(set(source))
ids = torch.tensor([chars.index(c) for c in source])
CTX, STEPS, PEAK = 48, 220, 6e-4
net = LM(len(chars), CTX)
matrices = [p for p in net.parameters() if p.ndim == 2]
vectors = [p for p in net.parameters() if p.ndim < 2]
opt = Lion([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=PEAK)

for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = PEAK * min((step + 1) / 20, 0.5 * (1 + math.cos(math.pi * step / STEPS)) + 0.05)
    at = torch.randint(len(ids) - CTX - 1, (16, 1)) + torch.arange(CTX + 1)
    rows = ids[at]
    loss = F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print("step", step, "loss", round(loss.item(), 4))
