import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
VOCAB, T, D, H, LAYERS = 40, 24, 48, 4, 2
EXPERTS, TOPK, HIDDEN = 4, 2, 96
AUX, Z = 0.01, 1e-3
STEPS, BATCH = 250, 16
DOMAINS = 4


class Corpus:
    A, C = torch.tensor([1, 7, 11, 29]), torch.tensor([5, 3, 17, 9])

    def sample(self, n, g=None):
        m = VOCAB - DOMAINS
        d = torch.randint(DOMAINS, (n,), generator=g)
        x = torch.randint(m, (n,), generator=g)
        seq = [d + m]
        for _ in range(T):
            seq.append(x)
            x = (self.A[d] * x + self.C[d]) % m
            noisy = torch.rand(n, generator=g) < 0.1
            x = torch.where(noisy, torch.randint(m, (n,), generator=g), x)
        return torch.stack(seq, 1)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, EXPERTS, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, D)
        logits = self.router(x)
        probs = logits.softmax(-1)
        w, idx = probs.topk(TOPK, dim=-1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            row, slot = (idx == e).nonzero(as_tuple=True)
            if row.numel():
                out.index_add_(0, row, expert(x[row]) * w[row, slot, None])
        load = F.one_hot(idx, EXPERTS).float().sum(1).mean(0) / TOPK
        balance = EXPERTS * (load * probs.mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        return out.view(shape), balance, z, load


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.attn = nn.MultiheadAttention(D, H, batch_first=True, bias=False)
        self.moe = MoE()

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        y, bal, z, load = self.moe(self.n2(x))
        return x + y, bal, z, load


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(D), nn.Linear(D, VOCAB, bias=False)
        self.register_buffer("mask", torch.ones(T, T).triu(1).bool(), persistent=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        bal = z = 0.0
        loads = []
        for b in self.blocks:
            x, bl, zl, load = b(x, self.mask)
            bal, z = bal + bl / LAYERS, z + zl / LAYERS
            loads.append(load.detach())
        return self.head(self.norm(x)), bal, z, torch.stack(loads)


data = Corpus()
val = data.sample(64, torch.Generator().manual_seed(99))
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min(1.0, (s + 1) / 20) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / STEPS))))


def lm(logits, seq):
    return F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())


for step in range(STEPS):
    seq = data.sample(BATCH)
    logits, bal, z, loads = model(seq[:, :-1])
    ce = lm(logits, seq)
    loss = ce + AUX * bal + Z * z
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == STEPS - 1:
        with torch.no_grad():
            vlogits, _, _, vload = model(val[:, :-1])
        print(f"step {step:3d} ce {ce.item():.4f} balance {bal.item():.3f} z {z.item():.3f} | val ce {lm(vlogits, val).item():.4f} "
              f"| load {[[round(v, 2) for v in row] for row in vload.tolist()]}")
