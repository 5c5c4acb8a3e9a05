import difflib
import inspect

import torch
import torch.nn as nn
import torch.nn.functional as F


def orthogonalise(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    x = x.T if flip else x
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.03, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buf, group["momentum"]))
                p.add_(update, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class Mixer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(4 * d, d, bias=False)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (d,))).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        q, k = F.rms_norm(q, (q.size(-1),)), F.rms_norm(k, (k.size(-1),))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (d,)))).square())


class Speedrun(nn.Module):
    def __init__(self, vocab, ctx, d=64, h=4, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.body = nn.Sequential(*[Mixer(d, h) for _ in range(depth)])
        self.head = nn.Linear(d, vocab, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids):
        x = self.body(self.wte(ids) + self.wpe.weight[:ids.size(1)])
        logits = self.head(F.rms_norm(x, (x.size(-1),)))
        return 15 * torch.tanh(logits / 15)


torch.manual_seed(0)
source = inspect.getsource(difflib)
letters = sorted(set(source))
data = torch.tensor([letters.index(c) for c in source])
ctx, bs, iters = 48, 12, 200
model = Speedrun(len(letters), ctx)
optimizers = [torch.optim.Adam([{"params": [model.head.weight], "lr": 0.01},
                                {"params": [model.wte.weight, model.wpe.weight], "lr": 0.05}],
                               betas=(0.8, 0.95), eps=1e-10),
              Muon(list(model.body.parameters()))]
base = [[g["lr"] for g in o.param_groups] for o in optimizers]
for i in range(iters + 1):
    frac = min(1.0, (iters + 1 - i) / (0.4 * iters))
    for o, rates in zip(optimizers, base):
        for g, r in zip(o.param_groups, rates):
            g["lr"] = r * frac
    at = torch.randint(len(data) - ctx - 1, (bs, 1)) + torch.arange(ctx + 1)
    rows = data[at]
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    for o in optimizers:
        o.step()
    model.zero_grad(set_to_none=True)
    if i % 20 == 0:
        print(f"iter {i} loss {loss.item():.4f}")
