from pydoc_data.topics import topics

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(2024)
rng = np.random.default_rng(2024)
raw = "\n".join(topics.values()).encode("ascii", "ignore")
tokens = np.frombuffer(raw, dtype=np.uint8).astype(np.int64)
cut = int(0.95 * len(tokens))
train_ids, val_ids = tokens[:cut], tokens[cut:]
BLOCK, BATCH, DIM, HEADS, DEPTH = 64, 12, 64, 4, 2


def sample(source):
    at = rng.integers(0, len(source) - BLOCK - 1, BATCH)
    x = np.stack([source[i:i + BLOCK] for i in at])
    y = np.stack([source[i + 1:i + BLOCK + 1] for i in at])
    return torch.from_numpy(x), torch.from_numpy(y)


class HeadConv(nn.Module):
    def __init__(self, width, kernel=3):
        super().__init__()
        self.kernel = kernel
        self.conv = nn.Conv1d(width, width, kernel, groups=width, padding=kernel // 2)

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class PrimerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre_attn = nn.LayerNorm(DIM)
        self.pre_ffn = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.mix = HeadConv(3 * DIM)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.mix(self.qkv(self.pre_attn(x))).chunk(3, dim=-1)
        q, k, v = (z.reshape(b, t, HEADS, -1).transpose(1, 2) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.relu(self.up(self.pre_ffn(x))).square())


class Primer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(128, DIM)
        self.pos = nn.Parameter(torch.zeros(BLOCK, DIM))
        self.blocks = nn.Sequential(*[PrimerBlock() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 128)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tok(x) + self.pos[:x.size(1)])))


net = Primer()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=220, pct_start=0.1)
for it in range(220):
    x, y = sample(train_ids)
    loss = F.cross_entropy(net(x).reshape(-1, 128), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if it % 20 == 0 or it == 219:
        net.eval()
        with torch.no_grad():
            vx, vy = sample(val_ids)
            val = F.cross_entropy(net(vx).reshape(-1, 128), vy.reshape(-1)).item()
        net.train()
        print(f"iter {it:>3} train {loss.item():.3f} val {val:.3f}")

context = torch.from_numpy(val_ids[:BLOCK].copy())[None]
with torch.no_grad():
    for _ in range(60):
        nxt = torch.multinomial(net(context[:, -BLOCK:])[:, -1].softmax(-1), 1)
        context = torch.cat([context, nxt], 1)
print(repr(bytes(context[0, BLOCK:].tolist()).decode("ascii", "replace")))
