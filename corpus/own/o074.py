import argparse
import math
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

ap = argparse.ArgumentParser()
ap.add_argument("--pattern", default="GLG")
ap.add_argument("--window", type=int, default=3)
ap.add_argument("--dim", type=int, default=64)
ap.add_argument("--heads", type=int, default=4)
ap.add_argument("--ctx", type=int, default=64)
ap.add_argument("--bs", type=int, default=12)
ap.add_argument("--iters", type=int, default=200)
ap.add_argument("--lr", type=float, default=4e-3)
args = ap.parse_args()
torch.manual_seed(101)

text = "\n".join(topics[k] for k in sorted(topics))[:400000]
chars = sorted(set(text))
lut = {c: i for i, c in enumerate(chars)}
data = torch.tensor([lut[c] for c in text])
cut = int(0.95 * len(data))
train_data, val_data = data[:cut], data[cut:]


def masks(t, window):
    i = torch.arange(t)[:, None]
    j = torch.arange(t)[None, :]
    behind = j <= i
    near = (i - j).abs() < window
    return {"G": behind, "L": near}


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        d = args.dim
        self.kind = kind
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.up, self.gate, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x, allowed):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, args.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[self.kind][:t, :t])
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        h = self.ln2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class HybridLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(chars), args.dim)
        self.pos = nn.Embedding(args.ctx, args.dim)
        self.layers = nn.ModuleList(Layer(c) for c in args.pattern)
        self.norm = nn.LayerNorm(args.dim)
        self.allowed = masks(args.ctx, args.window)

    def forward(self, ids):
        x = self.embed(ids) * math.sqrt(args.dim) * 0.1 + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, self.allowed)
        return F.linear(self.norm(x), self.embed.weight) * 0.1


def batch(src):
    ix = torch.randint(len(src) - args.ctx - 1, (args.bs,))
    w = torch.stack([src[i:i + args.ctx + 1] for i in ix])
    return w[:, :-1], w[:, 1:]


@torch.no_grad()
def next_char_nll(model, n=12):
    model.eval()
    total = 0.0
    for _ in range(n):
        ids, tgt = batch(val_data)
        t = int(torch.randint(16, args.ctx, ()))
        total += F.cross_entropy(model(ids[:, :t])[:, -1], tgt[:, t - 1]).item()
    model.train()
    return total / n


model = HybridLM()
opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
for it in range(args.iters):
    for g in opt.param_groups:
        g["lr"] = args.lr * min(1.0, (it + 1) / 20)
    ids, tgt = batch(train_data)
    loss = F.cross_entropy(model(ids).reshape(-1, len(chars)), tgt.reshape(-1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 20 == 0 or it == args.iters - 1:
        print(f"iter {it:4d} loss {loss.item():.4f}")
print(f"next-char nll on held-out prefixes {next_char_nll(model):.4f}")
