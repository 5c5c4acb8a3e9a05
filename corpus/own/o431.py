import argparse
import math
import time
from pydoc_data import topics

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=96)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--slots", type=int, default=16)
    p.add_argument("--ctx", type=int, default=64)
    p.add_argument("--batch", type=int, default=12)
    p.add_argument("--steps", type=int, default=320)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


class MemoryAttention(nn.Module):
    def __init__(self, dim, heads, slots):
        super().__init__()
        self.h, self.dh = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.mem_k = nn.Parameter(torch.randn(heads, slots, self.dh) * 0.5)
        self.mem_v = nn.Parameter(torch.randn(heads, slots, self.dh) * 0.1)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.dh).permute(2, 0, 3, 1, 4)
        P = self.mem_k.size(1)
        k = torch.cat([self.mem_k.expand(B, -1, -1, -1), k], dim=2)
        v = torch.cat([self.mem_v.expand(B, -1, -1, -1), v], dim=2)
        visible = torch.ones(T, P + T, dtype=torch.bool, device=x.device).tril()
        att = (q @ k.transpose(-2, -1)) / math.sqrt(self.dh)
        att = att.masked_fill(~visible, float("-inf")).softmax(-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, D)
        return self.out(y)


class Block(nn.Module):
    def __init__(self, dim, heads, slots):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = MemoryAttention(dim, heads, slots)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class MemLM(nn.Module):
    def __init__(self, vocab, a):
        super().__init__()
        self.tok = nn.Embedding(vocab, a.dim)
        self.pos = nn.Embedding(a.ctx, a.dim)
        self.blocks = nn.Sequential(*[Block(a.dim, a.heads, a.slots) for _ in range(a.layers)])
        self.norm = nn.LayerNorm(a.dim)
        self.head = nn.Linear(a.dim, vocab)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        return self.head(self.norm(self.blocks(x)))


def sample(data, a):
    start = torch.randint(0, len(data) - a.ctx - 1, (a.batch,))
    w = torch.stack([data[s:s + a.ctx + 1] for s in start])
    return w[:, :-1], w[:, 1:]


def main():
    a = get_args()
    torch.manual_seed(a.seed)
    text = "".join(topics.topics[k] for k in sorted(topics.topics))[:300_000]
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([lut[c] for c in text])
    cut = int(0.9 * len(data))
    train, val = data[:cut], data[cut:]

    model = MemLM(len(chars), a)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 20) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / a.steps))))
    t0 = time.time()
    for step in range(a.steps):
        x, y = sample(train, a)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == a.steps - 1:
            print(f"step {step:4d} | loss {loss.item():.4f} | {time.time() - t0:.1f}s", flush=True)

    model.eval()
    with torch.no_grad():
        tot = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
               for x, y in (sample(val, a) for _ in range(12))]
    print(f"val loss {sum(tot) / len(tot):.4f}")


if __name__ == "__main__":
    main()
