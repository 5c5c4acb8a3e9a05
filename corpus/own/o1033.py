import math
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 64
    n_layers: int = 3
    n_heads: int = 4
    n_kv_heads: int = 2
    ffn: int = 160
    block: int = 48
    batch: int = 20
    steps: int = 200
    lr: float = 2e-3
    warmup: int = 20
    seed: int = 1337


LETTERS = "abcdefghijklmnopqrstuvwxyz "
STOI = {c: i for i, c in enumerate(LETTERS)}


def build_corpus(seed, n_words=30000):
    rng = random.Random(seed)
    lex = ["".join(rng.choice(LETTERS[:26]) for _ in range(rng.randint(3, 6))) for _ in range(60)]
    follow = {w: rng.sample(lex, 6) for w in lex}
    words = [lex[0]]
    for _ in range(n_words):
        words.append(rng.choice(follow[words[-1]]))
    return " ".join(words), set(lex)


def rope_table(head_dim, max_len, base=10000.0):
    inv = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    ang = torch.outer(torch.arange(max_len).float(), inv)
    return ang.cos(), ang.sin()


def rotate(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h, self.kv = cfg.n_heads, cfg.n_kv_heads
        self.hd = cfg.dim // cfg.n_heads
        self.wq = nn.Linear(cfg.dim, self.h * self.hd, bias=False)
        self.wk = nn.Linear(cfg.dim, self.kv * self.hd, bias=False)
        self.wv = nn.Linear(cfg.dim, self.kv * self.hd, bias=False)
        self.wo = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(cfg.block, cfg.block), diagonal=1).bool())

    def forward(self, x, cos, sin):
        B, T, D = x.shape
        q, k, v = (w(x).view(B, T, -1, self.hd).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos[:T], sin[:T]), rotate(k, cos[:T], sin[:T])
        k = k.repeat_interleave(self.h // self.kv, dim=1)
        v = v.repeat_interleave(self.h // self.kv, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:T, :T])
        return self.wo(o.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n1, self.n2 = RMSNorm(cfg.dim), RMSNorm(cfg.dim)
        self.attn = Attention(cfg)
        self.w1 = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.w3 = nn.Linear(cfg.dim, cfg.ffn, bias=False)
        self.w2 = nn.Linear(cfg.ffn, cfg.dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.tok = nn.Embedding(len(LETTERS), cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.norm = RMSNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, len(LETTERS), bias=False)
        for name, table in zip(("cos", "sin"), rope_table(cfg.dim // cfg.n_heads, cfg.block)):
            self.register_buffer(name, table)
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, idx, targets=None):
        x = self.tok(idx)
        for b in self.blocks:
            x = b(x, self.cos, self.sin)
        logits = self.out(self.norm(x))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1))

    @torch.no_grad()
    def generate(self, idx, n):
        for _ in range(n):
            logits = self(idx[:, -self.cfg.block:])[:, -1]
            idx = torch.cat([idx, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return idx


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    text, lex = build_corpus(7)
    data = torch.tensor([STOI[c] for c in text])
    cut = int(0.9 * len(data))
    train, val = data[:cut], data[cut:]

    def batch(src):
        ix = torch.randint(len(src) - cfg.block - 1, (cfg.batch,))
        rows = torch.stack([src[i:i + cfg.block + 1] for i in ix])
        return rows[:, :-1], rows[:, 1:]

    model = LM(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.05)
    curve = lambda s: min(1.0, (s + 1) / cfg.warmup) * (0.55 + 0.45 * math.cos(math.pi * s / cfg.steps))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, curve)
    for step in range(cfg.steps):
        _, loss = model(*batch(train))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == cfg.steps - 1:
            vl = model(*batch(val))[1].item()
            print(f"step {step:4d} | train {loss.item():.4f} | val {vl:.4f} | lr {sched.get_last_lr()[0]:.2e}")
    model.eval()
    out = model.generate(torch.full((8, 1), STOI[" "]), 90)
    texts = ["".join(LETTERS[i] for i in row) for row in out.tolist()]
    words = [w for t in texts for w in t.split()[:-1]]
    print("sample:", texts[0])
    print(f"share of generated words in the lexicon: {sum(w in lex for w in words) / max(1, len(words)):.3f}")


if __name__ == "__main__":
    main()
