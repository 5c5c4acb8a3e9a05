import argparse
import random

import torch
from torch import nn
from pydoc_data import topics as T

torch.set_num_threads(1)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--depth", type=int, default=2)
    p.add_argument("--ctx", type=int, default=48)
    p.add_argument("--bs", type=int, default=24)
    p.add_argument("--lr", type=float, default=0.4)
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


class Layer(nn.Module):
    def __init__(self, dim, heads, ctx):
        super().__init__()
        self.n1 = nn.LayerNorm(dim)
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.n2 = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 3 * dim), nn.SiLU(), nn.Linear(3 * dim, dim))
        self.register_buffer("mask", torch.ones(ctx, ctx, dtype=torch.bool).triu(1))

    def forward(self, x):
        n = x.size(1)
        h = self.n1(x)
        a, _ = self.mha(h, h, h, attn_mask=self.mask[:n, :n], need_weights=False)
        x = x + a
        return x + self.ff(self.n2(x))


class Model(nn.Module):
    def __init__(self, vocab, args):
        super().__init__()
        self.emb = nn.Embedding(vocab, args.dim)
        self.pos = nn.Parameter(torch.randn(args.ctx, args.dim) * 0.1)
        self.layers = nn.ModuleList(Layer(args.dim, args.heads, args.ctx) for _ in range(args.depth))
        self.out = nn.Sequential(nn.LayerNorm(args.dim), nn.Linear(args.dim, vocab))

    def forward(self, x):
        h = self.emb(x) + self.pos[: x.size(1)]
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


def main():
    args = parse()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    text = " ".join(T.topics[k] for k in sorted(T.topics)).lower()
    text = "".join(c if c.isalnum() or c in " \n.,()" else " " for c in text)
    itos = sorted(set(text))
    stoi = {c: i for i, c in enumerate(itos)}
    ids = torch.tensor([stoi[c] for c in text])
    model = Model(len(itos), args)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr)
    ce = nn.CrossEntropyLoss()
    run = None
    for step in range(1, args.steps + 1):
        starts = [random.randrange(len(ids) - args.ctx - 1) for _ in range(args.bs)]
        batch = torch.stack([ids[s:s + args.ctx + 1] for s in starts])
        logits = model(batch[:, :-1])
        loss = ce(logits.reshape(-1, len(itos)), batch[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        run = loss.item() if run is None else 0.95 * run + 0.05 * loss.item()
        if step % 30 == 0 or step == 1:
            print(f"[{step:4d}/{args.steps}] loss={loss.item():.3f} avg={run:.3f}")


if __name__ == "__main__":
    main()
