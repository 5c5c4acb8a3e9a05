import math
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    vocab: int = 34
    width: int = 64
    heads: int = 4
    depth: int = 2
    ctx: int = 24
    rank: int = 8
    alpha: float = 16.0
    pre_steps: int = 140
    ft_steps: int = 240
    batch: int = 32


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.lora_a.t() @ self.lora_b.t()) * self.scaling


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.heads
        self.ln1 = nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.out = nn.Linear(c.width, c.width)
        self.ln2 = nn.LayerNorm(c.width)
        self.up = nn.Linear(c.width, 4 * c.width)
        self.down = nn.Linear(4 * c.width, c.width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class CharLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.width)
        self.pos = nn.Embedding(c.ctx, c.width)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.depth)])
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocab)
        self.save_memory = False

    def embed(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        return x.requires_grad_()

    def forward(self, ids):
        x = self.embed(ids)
        for blk in self.blocks:
            if self.save_memory and self.training:
                x = checkpoint(blk, x, use_reentrant=True)
            else:
                x = blk(x)
        return self.head(self.norm(x))


def sample(n, half, reverse, g):
    src = torch.randint(2, 34, (n, half), generator=g)
    sep = torch.full((n, 1), 1)
    if reverse:
        tgt = src.flip(1)
    else:
        tgt = src
    return torch.cat([src, sep, tgt], 1)


def lm_loss(model, seq, half):
    logits = model(seq[:, :-1])
    return F.cross_entropy(logits[:, half:].flatten(0, 1), seq[:, half + 1:].flatten())


@torch.no_grad()
def accuracy(model, half, reverse):
    g = torch.Generator().manual_seed(99)
    seq = sample(256, half, reverse, g)
    model.eval()
    hit = (model(seq[:, :-1])[:, half:].argmax(-1) == seq[:, half + 1:]).float().mean().item()
    model.train()
    return hit


def main():
    torch.manual_seed(3)
    c = Config()
    g = torch.Generator().manual_seed(5)
    model = CharLM(c)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(c.pre_steps):
        opt.zero_grad()
        loss = lm_loss(model, sample(c.batch, 8, False, g), 8)
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"pretrain {step} {loss.item():.4f}")
    print(f"base copy accuracy {accuracy(model, 8, False):.3f}")

    for p in model.parameters():
        p.requires_grad_(False)
    for blk in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            setattr(blk, name, LoRALinear(getattr(blk, name), c.rank, c.alpha))
    for p in model.head.parameters():
        p.requires_grad_(True)
    model.save_memory = True
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=4e-3, weight_decay=0.0)
    for step in range(c.ft_steps):
        opt.zero_grad()
        loss = lm_loss(model, sample(c.batch, 8, True, g), 8)
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"finetune {step} {loss.item():.4f}")
    print(f"heldout accuracy {accuracy(model, 8, True):.3f}")


if __name__ == "__main__":
    main()
