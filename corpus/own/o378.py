import dataclasses
import inspect
import typing

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class GPTJConfig:
    vocab: int
    ctx: int = 40
    d: int = 64
    heads: int = 4
    depth: int = 6
    mult: int = 2


class ParallelBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.ln = nn.LayerNorm(c.d)
        self.fused = nn.Linear(c.d, 3 * c.d + c.mult * c.d)
        self.attn_out = nn.Linear(c.d, c.d, bias=False)
        self.ff_out = nn.Linear(c.mult * c.d, c.d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v, ff = self.fused(self.ln(x)).split([d, d, d, self.c.mult * d], dim=-1)
        q, k, v = (z.view(b, t, self.c.heads, -1).transpose(1, 2) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        return self.attn_out(a) + self.ff_out(F.gelu(ff))


class ParallelGPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab, c.d)
        self.wpe = nn.Embedding(c.ctx, c.d)
        self.h = nn.Sequential(*(ParallelBlock(c) for _ in range(c.depth)))
        self.ln_f = nn.LayerNorm(c.d)
        self.lm_head = nn.Linear(c.d, c.vocab, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def main():
    torch.manual_seed(17)
    text = inspect.getsource(typing) + inspect.getsource(inspect)
    chars = sorted(set(text))
    stoi = {s: i for i, s in enumerate(chars)}
    data = torch.tensor([stoi[s] for s in text])
    c = GPTJConfig(vocab=len(chars))
    model = ParallelGPT(c)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    mean = 0.0
    for i in range(220):
        for g in optimizer.param_groups:
            g["lr"] = 1e-3 * min(1.0, (i + 1) / 25)
        ix = torch.randint(len(data) - c.ctx - 1, (12,))
        x = torch.stack([data[j:j + c.ctx] for j in ix])
        y = torch.stack([data[j + 1:j + 1 + c.ctx] for j in ix])
        loss = model(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.item() if i == 0 else 0.85 * mean + 0.15 * loss.item()
        if i % 20 == 0 or i == 219:
            print(f"iter {i}: loss {mean:.4f}")


if __name__ == "__main__":
    main()
