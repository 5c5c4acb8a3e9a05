import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    vocab: int = 24
    seq: int = 16
    dim: int = 48
    heads: int = 4
    layers: int = 2
    batch: int = 24
    base_steps: int = 110
    lora_steps: int = 150
    rank: int = 8
    alpha: float = 16.0


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.qkv = nn.Linear(c.dim, 3 * c.dim)
        self.o = nn.Linear(c.dim, c.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.attn = Attn(c)
        self.up, self.down = nn.Linear(c.dim, 4 * c.dim), nn.Linear(4 * c.dim, c.dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.drop(self.attn(self.n1(x)))
        return x + self.drop(self.down(F.gelu(self.up(self.n2(x)))))


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.dim)
        self.pos = nn.Embedding(c.seq, c.dim)
        self.blocks = nn.Sequential(*[Block(c) for _ in range(c.layers)])
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tok(x) + self.pos.weight[: x.shape[1]])))


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


def inject(model, c):
    model.requires_grad_(False)
    for blk in model.blocks:
        blk.attn.qkv = LoRALinear(blk.attn.qkv, c.rank, c.alpha)
        blk.up = LoRALinear(blk.up, c.rank, c.alpha)
        blk.down = LoRALinear(blk.down, c.rank, c.alpha)
    return [p for p in model.parameters() if p.requires_grad]


def walk(c, n, table, g):
    x = torch.empty(n, c.seq + 1, dtype=torch.long)
    x[:, 0] = torch.randint(0, c.vocab, (n,), generator=g)
    for t in range(c.seq):
        jump = torch.rand(n, generator=g) < 0.05
        x[:, t + 1] = torch.where(jump, torch.randint(0, c.vocab, (n,), generator=g), table[x[:, t]])
    return x[:, :-1], x[:, 1:]


def loop(tag, model, params, lr, steps, c, table, g):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for step in range(steps):
        x, y = walk(c, c.batch, table, g)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0 or step == steps - 1:
            print(f"{tag} {step:4d} loss {loss.item():.4f}")


def main():
    torch.manual_seed(61)
    g = torch.Generator().manual_seed(62)
    c = Cfg()
    first = torch.randperm(c.vocab, generator=g)
    second = first.clone()
    second[: c.vocab // 2] = first[: c.vocab // 2].roll(1)
    model = LM(c)
    loop("base", model, list(model.parameters()), 2e-3, c.base_steps, c, first, g)
    params = inject(model, c)
    model.eval()
    print("adapting", sum(p.numel() for p in params), "of", sum(p.numel() for p in model.parameters()))
    loop("adapt", model, params, 5e-3, c.lora_steps, c, second, g)


main()
