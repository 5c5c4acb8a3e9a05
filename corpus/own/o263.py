import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class ModelArgs:
    dim: int = 64
    n_layers: int = 2
    n_heads: int = 4
    vocab_size: int = 40
    max_seq_len: int = 40
    rope_theta: float = 10000.0


def precompute_freqs(dim, end, theta):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.outer(torch.arange(end).float(), freqs)
    return torch.polar(torch.ones_like(t), t)


def apply_rotary(x, freqs):
    z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs[None, :, None]).flatten(3)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight, 1e-6)


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads, self.head_dim = args.n_heads, args.dim // args.n_heads
        self.wqkv = nn.Linear(args.dim, 3 * args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, x, freqs):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (t.view(bsz, seqlen, self.n_heads, self.head_dim) for t in self.wqkv(x).chunk(3, dim=-1))
        xq, xk = apply_rotary(xq, freqs), apply_rotary(xk, freqs)
        output = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        return self.wo(output.reshape(bsz, seqlen, -1))


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = Attention(args)
        self.feed_forward = FeedForward(args.dim, 160)
        self.attention_norm, self.ffn_norm = RMSNorm(args.dim), RMSNorm(args.dim)

    def forward(self, x, freqs):
        h = x + self.attention(self.attention_norm(x), freqs)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleList(Block(args) for _ in range(args.n_layers))
        self.norm = RMSNorm(args.dim)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        self.register_buffer("freqs", precompute_freqs(args.dim // args.n_heads, args.max_seq_len, args.rope_theta))

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, self.freqs[:tokens.size(1)])
        return self.output(self.norm(h))


def stream(args, batch, g):
    while True:
        seq = [torch.randint(args.vocab_size, (batch,), generator=g) for _ in range(2)]
        while len(seq) < args.max_seq_len + 1:
            nxt = (seq[-1] + seq[-2]) % args.vocab_size
            noise = torch.rand(batch, generator=g) < 0.05
            seq.append(torch.where(noise, torch.randint(args.vocab_size, (batch,), generator=g), nxt))
        yield torch.stack(seq, 1)


def get_lr(it, peak=4e-3, warmup=20, total=180):
    if it < warmup:
        return peak * (it + 1) / warmup
    return 0.1 * peak + 0.45 * peak * (1 + math.cos(math.pi * (it - warmup) / (total - warmup)))


torch.manual_seed(41)
args = ModelArgs()
data = stream(args, 16, torch.Generator().manual_seed(410))
model = Transformer(args)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
for it in range(180):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    tokens = next(data)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 20 == 0 or it == 179:
        print(f"iter {it}: loss {loss.item():.4f}, lr {get_lr(it):.2e}")
