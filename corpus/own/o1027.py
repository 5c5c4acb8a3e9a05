import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(9)
random.seed(9)
D, T, B, STEPS = 64, 40, 16, 200

text = "".join(topics[k] for k in sorted(topics))[:120000]
chars = sorted(set(text))
enc = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([enc[c] for c in text])
kind = torch.tensor([0 if c.isspace() else 1 if c in "aeiou" else 2 if c.islower() else 3 if c.isupper()
                     else 4 if c.isdigit() else 5 for c in chars])
train, held = ids[:110000], ids[110000:]


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(chars), D)
        self.pos = nn.Parameter(0.02 * torch.randn(T, D))
        nn.init.normal_(self.emb.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(D, 4, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D), enable_nested_tensor=False)
        self.register_buffer("mask", torch.ones(T, T, dtype=torch.bool).triu(1))

    def forward(self, x):
        return self.enc(self.emb(x) + self.pos, mask=self.mask)


class TiedHead(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.proj = nn.Linear(D, D)
        nn.init.orthogonal_(self.proj.weight)
        self.table = table
        self.bias = nn.Parameter(torch.zeros(table.size(0)))

    def forward(self, h):
        return F.linear(self.proj(h), self.table, self.bias)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Trunk()
        self.next1 = TiedHead(self.trunk.emb.weight)
        self.next2 = TiedHead(self.trunk.emb.weight)
        self.kind = nn.Linear(D, 6)

    def losses(self, w):
        h = self.trunk(w[:, :T])
        return [F.cross_entropy(self.next1(h).flatten(0, 1), w[:, 1:T + 1].flatten()),
                F.cross_entropy(self.next2(h).flatten(0, 1), w[:, 2:T + 2].flatten()),
                F.cross_entropy(self.kind(h).flatten(0, 1), kind[w[:, 2:T + 2]].flatten())]


def pcgrad(losses, params):
    grads = []
    for k, l in enumerate(losses):
        g = torch.autograd.grad(l, params, retain_graph=k < len(losses) - 1, allow_unused=True)
        grads.append(torch.cat([(torch.zeros_like(p) if gi is None else gi).flatten() for gi, p in zip(g, params)]))
    out = torch.zeros_like(grads[0])
    conflicts = 0
    for i, gi in enumerate(grads):
        gi = gi.clone()
        order = [j for j in range(len(grads)) if j != i]
        random.shuffle(order)
        for j in order:
            d = gi @ grads[j]
            if d < 0:
                gi -= d / grads[j].square().sum() * grads[j]
                conflicts += 1
        out += gi
    at = 0
    for p in params:
        p.grad = out[at:at + p.numel()].view_as(p).clone()
        at += p.numel()
    return conflicts


def batch(data, n):
    i = torch.randint(0, len(data) - T - 2, (n,)).tolist()
    return torch.stack([data[j:j + T + 2] for j in i])


net = MultiTask()
params = list(net.parameters())
opt = torch.optim.AdamW(params, lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS, pct_start=0.1)
for step in range(STEPS):
    ls = net.losses(batch(train, B))
    c = pcgrad(ls, params)
    nn.utils.clip_grad_norm_(params, 2.0)
    opt.step()
    sched.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {sum(l.item() for l in ls):.4f} "
              + " ".join(f"{n}={l.item():.3f}" for n, l in zip(("next1", "next2", "kind"), ls)) + f" conflicts {c}")
net.eval()
with torch.no_grad():
    ls = net.losses(torch.stack([held[i:i + T + 2] for i in range(0, 8000, 80)]))
print("held-out " + " ".join(f"{l.item():.4f}" for l in ls))
