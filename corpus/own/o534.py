import random
from dataclasses import dataclass

import torch
from torch import nn, Tensor
from torch.nn import functional as F
import pydoc_data.topics


@dataclass
class Config:
    vocab: int = 256
    dim: int = 72
    n_layers: int = 2
    n_heads: int = 6
    n_kv_heads: int = 2
    hidden: int = 192
    ctx: int = 56
    theta: float = 10_000.0
    eps: float = 1e-6
    batch: int = 12
    steps: int = 300
    lr: float = 3e-3
    warmup: int = 25


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return h.type_as(x) * self.weight


def rope_tables(head_dim: int, length: int, theta: float) -> tuple[Tensor, Tensor]:
    inv = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    ang = torch.outer(torch.arange(length).float(), inv)
    ang = torch.cat([ang, ang], dim=-1)
    return ang.cos(), ang.sin()


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.h, self.kv, self.hd = c.n_heads, c.n_kv_heads, c.dim // c.n_heads
        self.wq = nn.Linear(c.dim, self.h * self.hd, bias=False)
        self.wk = nn.Linear(c.dim, self.kv * self.hd, bias=False)
        self.wv = nn.Linear(c.dim, self.kv * self.hd, bias=False)
        self.wo = nn.Linear(self.h * self.hd, c.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, self.h, self.hd).transpose(1, 2)
        k = self.wk(x).view(B, T, self.kv, self.hd).transpose(1, 2)
        v = self.wv(x).view(B, T, self.kv, self.hd).transpose(1, 2)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        k = k.repeat_interleave(self.h // self.kv, dim=1)
        v = v.repeat_interleave(self.h // self.kv, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(B, T, -1))


class SwiGLU(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate = nn.Linear(c.dim, c.hidden, bias=False)
        self.up = nn.Linear(c.dim, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.attn_norm = RMSNorm(c.dim, c.eps)
        self.attn = Attention(c)
        self.ffn_norm = RMSNorm(c.dim, c.eps)
        self.ffn = SwiGLU(c)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.n_layers)])
        self.norm = RMSNorm(c.dim, c.eps)
        self.out = nn.Linear(c.dim, c.vocab, bias=False)
        cos, sin = rope_tables(c.dim // c.n_heads, c.ctx, c.theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        T = ids.shape[1]
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T])
        return self.out(self.norm(x))


def main():
    torch.manual_seed(0)
    c = Config()
    paragraphs = list(dict.fromkeys(p for t in pydoc_data.topics.topics.values() for p in t.split("\n\n")))
    random.Random(1).shuffle(paragraphs)
    raw = "\n\n".join(paragraphs).encode("utf-8")
    corpus = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    cut = len(corpus) * 95 // 100
    train, held = corpus[:cut], corpus[cut:]

    model = Llama(c)
    print("parameters:", sum(p.numel() for p in model.parameters()))
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.05)
    sched = torch.optim.lr_scheduler.SequentialLR(opt, [
        torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=c.warmup),
        torch.optim.lr_scheduler.CosineAnnealingLR(opt, c.steps - c.warmup, eta_min=c.lr * 0.1),
    ], milestones=[c.warmup])

    windows = held[: (len(held) - 1) // c.ctx * c.ctx + 1]
    vx = windows[:-1].view(-1, c.ctx)[:64].long()
    vy = windows[1:].view(-1, c.ctx)[:64].long()

    for it in range(1, c.steps + 1):
        start = torch.randint(0, len(train) - c.ctx, (c.batch, 1))
        seq = train[start + torch.arange(c.ctx + 1)].long()
        logits = model(seq[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, c.vocab), seq[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if it == 1 or it % 50 == 0:
            with torch.inference_mode():
                vl = F.cross_entropy(model(vx).flatten(0, 1), vy.flatten())
            print(f"it {it:4d} | loss {loss.item():.3f} | held-out {vl.item():.3f}")


if __name__ == "__main__":
    main()
