from dataclasses import dataclass
import numpy as np
import torch
from torch import nn, Tensor
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 64
    seq_len: int = 32
    dim: int = 64
    heads: int = 4
    layers: int = 2
    mask_prob: float = 0.15
    batch: int = 32
    steps: int = 400
    lr: float = 0.003
    warmup: int = 40
    seed: int = 11


PAD_TOKENS = 3


class ToyLanguage:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rng = np.random.default_rng(cfg.seed)
        n = cfg.vocab - PAD_TOKENS
        self.tables = [np.stack([self.rng.permutation(n) for _ in range(2)], 1) for _ in range(2)]

    def sentences(self, count: int) -> Tensor:
        cfg, rng = (self.cfg, self.rng)
        n = cfg.vocab - PAD_TOKENS
        out = np.zeros((count, cfg.seq_len), dtype=np.int64)
        dialect = rng.integers(0, 2, count)
        out[:, 0] = 1 + dialect
        cur = rng.integers(0, n, count)
        both = np.stack(self.tables)
        for t in range(1, cfg.seq_len):
            out[:, t] = cur + PAD_TOKENS
            pick = (rng.random(count) < 0.25).astype(int)
            nxt = both[dialect, cur, pick]
            cur = np.where(rng.random(count) < 0.03, rng.integers(0, n, count), nxt)
        return torch.from_numpy(out)

    def masked(self, count: int):
        ids = self.sentences(count)
        chosen = torch.rand(ids.shape) < self.cfg.mask_prob
        chosen[:, 0] = False
        r = torch.rand(ids.shape)
        inp = ids.clone()
        inp[chosen & (r < 0.9)] = 0
        labels = ids.masked_fill(~chosen, -100)
        return (inp, labels)


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, base: float = 10000.0):
        super().__init__()
        inv = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        ang = torch.outer(t, self.inv_freq)[None, :, None, :]
        cos, sin = (ang.cos(), ang.sin())
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.h, self.d = (cfg.heads, cfg.dim // cfg.heads)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.rope = RotaryEmbedding(self.d)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, self.d).unbind(2)
        q, k = (self.rope(q), self.rope(k))
        q, k, v = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.norm1, self.attn = (nn.LayerNorm(cfg.dim), Attention(cfg))
        self.norm2 = nn.LayerNorm(cfg.dim)
        self.ff = nn.Sequential(
            nn.Linear(cfg.dim, 3 * cfg.dim), nn.GELU(), nn.Linear(3 * cfg.dim, cfg.dim)
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ff(self.norm2(x))


class MaskedLM(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        nn.init.normal_(self.emb.weight, std=0.05)
        self.layers = nn.ModuleList((Layer(cfg) for _ in range(cfg.layers)))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.lang = ToyLanguage(cfg)
        self.model = MaskedLM(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.rate)
        self.val = self.lang.masked(128)

    def rate(self, step: int) -> float:
        c = self.cfg
        return min(1.0, (step + 1) / c.warmup) * max(0.05, 1 - step / c.steps)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        inp, lab = self.val
        logits = self.model(inp)
        hit = logits.argmax(-1)[lab != -100] == lab[lab != -100]
        loss = F.cross_entropy(logits.flatten(0, 1), lab.flatten(), ignore_index=-100)
        self.model.train()
        return (loss.item(), hit.float().mean().item())

    def fit(self):
        for step in range(self.cfg.steps):
            inp, lab = self.lang.masked(self.cfg.batch)
            loss = F.cross_entropy(self.model(inp).flatten(0, 1), lab.flatten(), ignore_index=-100)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            if step % 50 == 0 or step == self.cfg.steps - 1:
                vl, acc = self.evaluate()
                print(f"[{step:4d}] train {loss.item():.3f} | val {vl:.3f} | masked acc {acc:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    tr = Trainer(Config())
    tr.fit()
    print("final masked accuracy %.4f" % tr.evaluate()[1])
