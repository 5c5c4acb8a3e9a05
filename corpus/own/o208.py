import inspect
import math
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
import _pydecimal
from pydoc_data.topics import topics
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
torch.manual_seed(17)

CODE = inspect.getsource(_pydecimal)
PROSE = "".join(topics[k] for k in sorted(topics))
STOI = {c: i for i, c in enumerate(sorted(set(CODE + PROSE)))}
BLOCK, BATCH = 48, 16


def encode(s):
    return torch.tensor([STOI[c] for c in s])


def get_batch(data):
    ix = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    x = torch.stack([data[i:i + BLOCK] for i in ix])
    y = torch.stack([data[i + 1:i + BLOCK + 1] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.c_out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocab, d=64, h=4, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(BLOCK, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.gradient_checkpointing = False

    def forward(self, x):
        h = self.wte(x) + self.wpe.weight[:x.size(1)]
        for block in self.blocks:
            if self.gradient_checkpointing:
                h = checkpoint(block, h, use_reentrant=True)
            else:
                h = block(h)
        return self.lm_head(self.ln_f(h))


class LoRALinear(nn.Module):
    def __init__(self, base, r=16, alpha=32):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


def fit(model, data, steps, lr, tag):
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    acc = []
    for step in range(steps):
        x, y = get_batch(data)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            print(f"{tag} step {step} loss {sum(acc[-10:]) / len(acc[-10:]):.4f}")


model = GPT(len(STOI))
fit(model, encode(CODE), 100, 3e-3, "base")
for p in model.parameters():
    p.requires_grad_(False)
for block in model.blocks:
    for name in ("c_attn", "c_proj", "c_fc", "c_out"):
        setattr(block, name, LoRALinear(getattr(block, name)))
model.ln_f.requires_grad_(True)
model.gradient_checkpointing = True
fit(model, encode(PROSE), 140, 3e-3, "adapt")
