import itertools
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(63)
CONTEXT, BATCH, STEPS = 64, 12, 200

corpus = "\n".join(topics[k] for k in sorted(topics))
stoi = {c: i for i, c in enumerate(sorted(set(corpus)))}
stream = torch.tensor([stoi[c] for c in corpus])


class ShortConv(nn.Module):
    def __init__(self, dim, kernel=3):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class GatedMixer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(dim, 4 * dim, bias=False)
        self.short = ShortConv(3 * dim)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        qkv, gate = self.in_proj(x).split([3 * c, c], dim=-1)
        q, k, v = self.short(qkv).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, c) * F.silu(gate))


class Hybrid(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, depth=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.mixers = nn.ModuleList(GatedMixer(dim, heads) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth + 1))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 3 * dim), nn.SiLU(), nn.Linear(3 * dim, dim)) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.wte(ids)
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps)):
            x = x + mixer(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def windows():
    while True:
        starts = torch.randint(0, len(stream) - CONTEXT - 1, (BATCH,)).tolist()
        yield torch.stack([stream[s:s + CONTEXT + 1] for s in starts])


model = Hybrid(len(stoi))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=2e-4)
for n, window in enumerate(itertools.islice(windows(), STEPS)):
    inputs, targets = window[:, :-1], window[:, 1:]
    loss = F.cross_entropy(model(inputs).reshape(-1, len(stoi)), targets.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    if n % 20 == 0 or n == STEPS - 1:
        print(f"{n:>4} train loss {loss.item():.3f}")
