import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(123)


def orthogonalise(m, steps=4):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m / (m.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.T
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad)
                d = p.grad + group["momentum"] * buf
                p.add_(orthogonalise(d), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 3 * d, bias=False)
        self.down = nn.Linear(3 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (d,))).chunk(3, -1)
        q, k, v = (z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (d,)))).square())


class Model(nn.Module):
    def __init__(self, vocab, d=64, h=4, n=2, ctx=48):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(n)])
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, x):
        h = self.wte(x) + self.wpe.weight[:x.size(1)]
        for b in self.blocks:
            h = b(h)
        return self.head(F.rms_norm(h, (h.size(-1),)))


text = "".join(topics[k] for k in sorted(topics))
chars = sorted(set(text))
lut = {c: i for i, c in enumerate(chars)}
data = torch.tensor([lut[c] for c in text])
model = Model(len(chars))

matrices = list(model.blocks.parameters())
rest = [p for n, p in model.named_parameters() if not n.startswith("blocks")]
opts = [torch.optim.AdamW(rest, lr=2e-3, betas=(0.9, 0.95)), Muon(matrices, lr=0.05)]
base = [o.param_groups[0]["lr"] for o in opts]
steps, ctx = 180, 48

for step in range(steps):
    k = 1.0 if step < steps // 2 else max(0.05, 2 * (1 - step / steps))
    for o, lr in zip(opts, base):
        o.param_groups[0]["lr"] = lr * k
    win = data[torch.randint(len(data) - ctx - 1, (12, 1)) + torch.arange(ctx + 1)]
    loss = F.cross_entropy(model(win[:, :-1]).flatten(0, 1), win[:, 1:].flatten())
    loss.backward()
    for opt in opts:
        opt.step()
    opts[0].zero_grad(set_to_none=True)
    if step % 20 == 0 or step == steps - 1:
        print(f"step {step} loss {loss.item():.4f}")
