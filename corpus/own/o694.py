import math
from dataclasses import dataclass
from pydoc_data import topics

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    block: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 20
    base_steps: int = 110
    tune_steps: int = 130
    rank: int = 12
    alpha: float = 24.0
    base_lr: float = 3e-3
    tune_lr: float = 4e-3


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.alpha = alpha
        self.allocate(rank)

    def allocate(self, rank: int):
        self.rank = rank
        self.A = nn.Parameter(torch.randn(rank, self.base.in_features) / math.sqrt(self.base.in_features))
        self.B = nn.Parameter(torch.zeros(self.base.out_features, rank))

    def forward(self, x):
        return self.base(x) + (x @ self.A.T @ self.B.T) * (self.alpha / self.rank)


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.ln1 = nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        self.ln2 = nn.LayerNorm(cfg.dim)
        self.up = nn.Linear(cfg.dim, 4 * cfg.dim)
        self.down = nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class CharLM(nn.Module):
    def __init__(self, vocab, cfg):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.block, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.ln_f = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, vocab)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)

    def forward(self, idx):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.ln_f(x))


def inject_lora(model, rank, alpha):
    for p in model.parameters():
        p.requires_grad_(False)
    for blk in model.blocks:
        for name in ("qkv", "proj", "up", "down"):
            setattr(blk, name, LoRALinear(getattr(blk, name), rank, alpha))
    model.head = LoRALinear(model.head, rank, alpha)
    for p in model.ln_f.parameters():
        p.requires_grad_(True)


def set_rank(model, rank):
    for m in model.modules():
        if isinstance(m, LoRALinear):
            m.allocate(rank)


def get_batch(data, cfg, gen):
    ix = torch.randint(len(data) - cfg.block - 1, (cfg.batch,), generator=gen)
    win = torch.stack([data[i : i + cfg.block + 1] for i in ix])
    return win[:, :-1], win[:, 1:]


def lm_loss(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


@torch.no_grad()
def evaluate(model, data, cfg):
    gen = torch.Generator().manual_seed(99)
    model.eval()
    out = sum(lm_loss(model, *get_batch(data, cfg, gen)).item() for _ in range(6)) / 6
    model.train()
    return out


class Tuner:

    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        inject_lora(model, 4, cfg.alpha)
        self.configure()
        self.opt = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=cfg.tune_lr, weight_decay=0.0
        )

    def configure(self):
        set_rank(self.model, self.cfg.rank)
        n = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        print(f"trainable parameters in stage 2: {n}")

    def fit(self, train, valid, gen):
        for step in range(self.cfg.tune_steps):
            loss = lm_loss(self.model, *get_batch(train, self.cfg, gen))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if step % 20 == 0 or step == self.cfg.tune_steps - 1:
                print(f"[tune] step {step:4d} loss {loss.item():.4f}")
        print(f"[tune] held-out loss {evaluate(self.model, valid, self.cfg):.4f}")


def main():
    torch.manual_seed(0)
    cfg = Config()
    text = "\n".join(topics.topics[k] for k in sorted(topics.topics))[:200_000]
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([lut[c] for c in text])
    cut = int(0.9 * len(data))
    train, valid = data[:cut], data[cut:]
    gen = torch.Generator().manual_seed(1)

    model = CharLM(len(chars), cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.base_lr)
    for step in range(cfg.base_steps):
        loss = lm_loss(model, *get_batch(train, cfg, gen))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"[base] step {step:4d} loss {loss.item():.4f}")
    print(f"[base] held-out loss {evaluate(model, valid, cfg):.4f}")

    Tuner(model, cfg).fit(train.flip(0), valid.flip(0), gen)


if __name__ == "__main__":
    main()
