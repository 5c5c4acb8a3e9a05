import torch
from torch import nn
from torch.nn import functional as F

KEYS, VALUES, SLOTS, ASKED = 40, 24, 16, 6


def episodes(n, rng):
    keys = torch.rand(n, KEYS, generator=rng).argsort(1)[:, :SLOTS]
    values = torch.randint(VALUES, (n, SLOTS), generator=rng)
    pick = torch.randint(SLOTS, (n, ASKED), generator=rng)
    return keys, values, keys.gather(1, pick), values.gather(1, pick)


class CosineAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        q = F.normalize(self.split(self.to_q(x)), dim=-1)
        k, v = self.to_kv(memory).chunk(2, dim=-1)
        k, v = F.normalize(self.split(k), dim=-1), self.split(v)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class ReaderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.n1, self.n2, self.nm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CosineAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x, memory):
        x = x + self.attn(self.n1(x), self.nm(memory))
        return x + self.mlp(self.n2(x))


class Reader(nn.Module):
    def __init__(self, width=96, heads=4, depth=2):
        super().__init__()
        self.key = nn.Embedding(KEYS, width)
        self.value = nn.Embedding(VALUES, width)
        self.layers = nn.ModuleList(ReaderLayer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VALUES)

    def forward(self, keys, values, asked):
        memory = self.key(keys) + self.value(values)
        x = self.key(asked)
        for layer in self.layers:
            x = layer(x, memory)
        return self.head(self.norm(x))


torch.manual_seed(44)
rng = torch.Generator().manual_seed(45)
reader = Reader()
optimizer = torch.optim.AdamW(reader.parameters(), lr=2e-3, weight_decay=0.01)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
total = 140
for step in range(total):
    keys, values, asked, answer = episodes(48, rng)
    logits = reader(keys, values, asked)
    loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    optimizer.step()
    warm.step()
    if step % 10 == 0 or step == total - 1:
        right = (logits.argmax(-1) == answer).float().mean().item()
        print(f"[{step:03d}] loss={loss.item():.4f} recall={right:.3f}")
