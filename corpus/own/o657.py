import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

N_SUBJ, N_REL, N_OBJ = 24, 10, 40
DOT = N_SUBJ + N_REL + N_OBJ
VOCAB = DOT + 1


class FactStream:
    def __init__(self, seed, facts_per_row=12):
        self.rng = np.random.default_rng(seed)
        self.table = self.rng.integers(0, N_OBJ, size=(N_SUBJ, N_REL))
        self.k = facts_per_row

    def batch(self, n):
        s = self.rng.integers(0, N_SUBJ, size=(n, self.k))
        r = self.rng.integers(0, N_REL, size=(n, self.k))
        o = self.table[s, r]
        rows = np.stack([s, N_SUBJ + r, N_SUBJ + N_REL + o, np.full_like(s, DOT)], -1).reshape(n, -1)
        t = torch.from_numpy(rows)
        x, y = t[:, :-1], t[:, 1:].clone()
        y[:, np.arange(y.shape[1]) % 4 != 1] = -100
        return x, y


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.g


class MoE(nn.Module):
    def __init__(self, d, hidden, n_exp, top_k):
        super().__init__()
        self.router = nn.Linear(d, n_exp, bias=False)
        self.w_in = nn.Parameter(torch.randn(n_exp, d, hidden) / math.sqrt(d))
        self.w_out = nn.Parameter(torch.randn(n_exp, hidden, d) / math.sqrt(hidden))
        self.top_k = top_k
        self.balance = None

    def forward(self, x):
        B, T, D = x.shape
        flat = x.reshape(-1, D)
        probs = self.router(flat).softmax(-1)
        val, idx = probs.topk(self.top_k, -1)
        gate = torch.zeros_like(probs).scatter(1, idx, val / val.sum(-1, keepdim=True))
        h = F.silu(torch.einsum("nd,edh->neh", flat, self.w_in))
        y = torch.einsum("neh,ehd,ne->nd", h, self.w_out, gate)
        load = (gate > 0).float().mean(0)
        self.balance = probs.size(1) * (load * probs.mean(0)).sum() / self.top_k
        return y.view(B, T, D)


class Block(nn.Module):
    def __init__(self, d, heads, n_exp):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.moe = MoE(d, 2 * d, n_exp, 2)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, D)
        x = x + self.o(a)
        return x + self.moe(self.n2(x))


class MoELM(nn.Module):
    def __init__(self, d=32, heads=2, layers=2, n_exp=6, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(max_len, d) * 0.1)
        self.blocks = nn.ModuleList(Block(d, heads, n_exp) for _ in range(layers))
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, x):
        h = self.tok(x) + self.pos[: x.size(1)]
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))

    def balance_loss(self):
        return sum(b.moe.balance for b in self.blocks) / len(self.blocks)


def configure_optimizer(model, lr, wd):
    decay = [p for p in model.parameters() if p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": decay, "weight_decay": wd},
                              {"params": no_decay, "weight_decay": 0.0}], lr=lr, betas=(0.9, 0.98))


def object_accuracy(model, stream):
    with torch.no_grad():
        x, y = stream.batch(64)
        pred = model(x).argmax(-1)
        return (pred[:, 1::4] == y[:, 1::4]).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(7)
    stream = FactStream(7)
    model = MoELM()
    opt = configure_optimizer(model, lr=4e-3, wd=0.01)
    steps = 320
    running = 0.0
    for step in range(1, steps + 1):
        for group in opt.param_groups:
            group["lr"] = 4e-3 * min(1.0, step / 20) * (1 - 0.8 * step / steps)
        x, y = stream.batch(16)
        ce = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss = ce + 0.01 * model.balance_loss()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        running += ce.item()
        if step % 40 == 0:
            print(f"step {step} ce {running / 40:.4f} balance {model.balance_loss().item():.3f}")
            running = 0.0
    print(f"object accuracy {object_accuracy(model, stream):.3f}")
