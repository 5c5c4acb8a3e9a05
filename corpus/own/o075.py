from dataclasses import dataclass
from pydoc_data.topics import topics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


@dataclass
class Config:
    vocab: int = 128
    block: int = 32
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 48
    batch: int = 24
    lr: float = 3e-3
    steps: int = 80
    seed: int = 5


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = [z.view(B, T, self.c.n_head, C // self.c.n_head).transpose(1, 2) for z in (q, k, v)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.n_embd)
        self.attn = Attention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab, c.n_embd)
        self.wpe = nn.Embedding(c.block, c.n_embd)
        self.h = nn.ModuleList([Block(c) for _ in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab, bias=False)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.05)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for blk in self.h:
            x = blk(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    raw = "".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")
    data = torch.tensor(list(raw[:300000]))
    model = GPT(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.1)
    t0 = time.perf_counter()
    for step in range(cfg.steps):
        ix = torch.randint(len(data) - cfg.block - 1, (cfg.batch,))
        x = torch.stack([data[i:i + cfg.block] for i in ix])
        y = torch.stack([data[i + 1:i + 1 + cfg.block] for i in ix])
        loss = 0.0
        for i in range(cfg.batch):
            loss = loss + model(x[i:i + 1], y[i:i + 1]) / cfg.batch
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 10 == 0 or step == cfg.steps - 1:
            ms = (time.perf_counter() - t0) / (step + 1) * 1000
            print(f"step {step}: loss {loss.item():.4f}, {ms:.1f} ms/step")


if __name__ == "__main__":
    main()
