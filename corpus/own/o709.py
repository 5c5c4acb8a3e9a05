import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seq_len: int = 56
    d_model: int = 64
    n_layers: int = 2
    batch: int = 24
    steps: int = 240
    lr: float = 3e-3
    seed: int = 7


cfg = Config()
torch.manual_seed(cfg.seed)
rng = np.random.default_rng(cfg.seed)

OPS = ["add", "sub", "mov", "ldi"]
CHARS = sorted(set("addsubmovldi r0123456789,;"))
STOI = {c: i for i, c in enumerate(CHARS)}


def statement():
    op = OPS[rng.integers(4)]
    a, b = rng.integers(0, 6), rng.integers(0, 10)
    if op == "ldi":
        return f"ldi r{a},{b};"
    if op == "mov":
        return f"mov r{a},r{(a + 1) % 6};"
    return f"{op} r{a},r{b % 6},r{b % 6};"


def make_text(n):
    return "".join(statement() for _ in range(n))


def encode(s):
    return torch.tensor([STOI[c] for c in s])


train_ids, val_ids = encode(make_text(12000)), encode(make_text(1500))


def batch_from(ids, n):
    st = torch.randint(0, len(ids) - cfg.seq_len - 1, (n,))
    idx = st[:, None] + torch.arange(cfg.seq_len + 1)
    chunk = ids[idx]
    return chunk[:, :-1], chunk[:, 1:]


class LongConv(nn.Module):
    def __init__(self, d, max_len):
        super().__init__()
        decay = torch.logspace(-2, 0.3, d)[:, None]
        t = torch.arange(max_len)[None]
        self.filt = nn.Parameter(torch.randn(d, max_len) * torch.exp(-decay * t) * 0.3)
        self.skip = nn.Parameter(torch.ones(d))

    def forward(self, u):
        L = u.size(-1)
        n = L
        k = self.filt[:, :L]
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)
        return y[..., :L] + self.skip[:, None] * u


class Block(nn.Module):
    def __init__(self, d, max_len):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.proj = nn.Linear(d, 3 * d)
        self.conv = LongConv(d, max_len)
        self.out = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        q, k, v = self.proj(self.n1(x)).transpose(1, 2).chunk(3, dim=1)
        y = q * self.conv(torch.tanh(k) * v)
        x = x + self.out(y.transpose(1, 2))
        return x + self.mlp(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(CHARS), cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg.d_model, cfg.seq_len) for _ in range(cfg.n_layers))
        self.norm = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(cfg.d_model, len(CHARS))

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01, betas=(0.9, 0.98))
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min(1, (s + 1) / 30) * (0.1 + 0.45 * (1 + math.cos(math.pi * s / cfg.steps))))

for step in range(cfg.steps):
    x, y = batch_from(train_ids, cfg.batch)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 60 == 0 or step == cfg.steps - 1:
        with torch.no_grad():
            vx, vy = batch_from(val_ids, 64)
            vl = F.cross_entropy(model(vx).flatten(0, 1), vy.flatten())
        print(f"step {step:4d}  train {loss.item():.4f}  val {vl.item():.4f}")


def valid(s):
    head, _, rest = s.partition(" ")
    args = rest.split(",")
    if head == "ldi":
        return len(args) == 2 and args[0][:1] == "r" and args[1].isdigit()
    if head == "mov":
        return len(args) == 2 and all(a[:1] == "r" and a[1:].isdigit() for a in args) \
            and (int(args[0][1:]) + 1) % 6 == int(args[1][1:])
    if head in ("add", "sub"):
        return len(args) == 3 and all(a[:1] == "r" and a[1:].isdigit() for a in args) and args[1] == args[2]
    return False


@torch.no_grad()
def sample(n=24, length=50):
    ids = encode(";").repeat(n, 1)
    for _ in range(length):
        p = F.softmax(model(ids)[:, -1], -1)
        ids = torch.cat([ids, torch.multinomial(p, 1)], 1)
    return ["".join(CHARS[i] for i in row) for row in ids.tolist()]


outs = sample()
stm = [s for o in outs for s in o.strip(";").split(";")[:-1]]
print("sample:", outs[0])
print(f"well-formed statements: {sum(map(valid, stm)) / max(1, len(stm)):.3f} of {len(stm)}")
