from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    dim: int = 64
    n_layers: int = 2
    n_heads: int = 2
    vocab: int = 32
    seq: int = 40
    lag: int = 6
    batch: int = 24
    lr: float = 3e-3
    steps: int = 160


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class ApplyRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        ctx.save_for_backward(cos, sin)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    @staticmethod
    def backward(ctx, dq, dk):
        cos, sin = ctx.saved_tensors
        dq = dq * cos + rotate_half(dq) * sin
        dk = dk * cos + rotate_half(dk) * sin
        return dq, dk, None, None


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight, 1e-5)


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.n_heads
        self.norm1, self.norm2 = RMSNorm(a.dim), RMSNorm(a.dim)
        self.wqkv = nn.Linear(a.dim, 3 * a.dim, bias=False)
        self.wo = nn.Linear(a.dim, a.dim, bias=False)
        self.gate_up = nn.Linear(a.dim, 4 * a.dim, bias=False)
        self.down = nn.Linear(2 * a.dim, a.dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q, k, v = self.wqkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = ApplyRope.apply(q, k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, c))
        g, u = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(g) * u)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.tok = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.n_layers))
        self.norm = RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)
        hd = a.dim // a.n_heads
        freq = 1000.0 ** (-torch.arange(0, hd, 2).float() / hd)
        ang = torch.outer(torch.arange(a.seq).float(), freq)
        ang = torch.cat((ang, ang), -1)
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, ids):
        x = self.tok(ids)
        t = ids.size(1)
        for blk in self.blocks:
            x = blk(x, self.cos[:t], self.sin[:t])
        return self.head(self.norm(x))


def sample(a, gen):
    rows = torch.randint(a.vocab, (a.batch, a.seq + 1), generator=gen)
    keep = torch.rand(a.batch, a.seq + 1, generator=gen) < 0.9
    for t in range(a.lag, a.seq + 1):
        rows[:, t] = torch.where(keep[:, t], (rows[:, t - a.lag] + 1) % a.vocab, rows[:, t])
    return rows[:, :-1], rows[:, 1:]


def main():
    torch.manual_seed(4)
    a = Args()
    gen = torch.Generator().manual_seed(44)
    net = Llama(a)
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.05)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    for step in range(1, a.steps + 1):
        x, y = sample(a, gen)
        out = net(x)
        loss = F.cross_entropy(out[:, a.lag:].flatten(0, 1), y[:, a.lag:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step == 1 or step % 20 == 0:
            print(f"iter {step} loss {loss.item():.4f}")


main()
