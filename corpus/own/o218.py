import random
import string

import torch
from torch import einsum, nn
from torch.nn.functional import cross_entropy, gelu

MASK_ID = 26


def make_language(seed, stems=14):
    rng = random.Random(seed)
    return ["".join(rng.choice(string.ascii_lowercase) for _ in range(6)) for _ in range(stems)]


def rows(n, language, rng, words=5):
    out = []
    for _ in range(n):
        out.append([ord(c) - 97 for w in rng.choices(language, k=words) for c in w])
    return torch.tensor(out)


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def split(self, t):
        b, n, _ = t.shape
        return t.reshape(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x):
        k, v = map(self.split, self.to_kv(x).chunk(2, dim=-1))
        q = self.split(self.to_q(x)) * self.scale
        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h i d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim, mult=3):
        super().__init__()
        self.a, self.b = nn.Linear(dim, dim * mult), nn.Linear(dim * mult, dim)

    def forward(self, x):
        return self.b(gelu(self.a(x)))


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x):
        return x + self.fn(self.norm(x))


class Cloze(nn.Module):
    def __init__(self, tokens=27, dim=64, depth=2, length=30):
        super().__init__()
        self.token_emb = nn.Embedding(tokens, dim)
        self.pos_emb = nn.Parameter(torch.randn(length, dim) * 0.3)
        stack = []
        for _ in range(depth):
            stack += [PreNorm(dim, Attention(dim)), PreNorm(dim, FeedForward(dim))]
        self.stack = nn.Sequential(*stack, nn.LayerNorm(dim))
        self.to_logits = nn.Linear(dim, 26)

    def forward(self, ids):
        return self.to_logits(self.stack(self.token_emb(ids) + self.pos_emb))


torch.manual_seed(14)
rng = random.Random(15)
language = make_language(16)
net = Cloze()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(300):
    ids = rows(40, language, rng)
    hide = torch.rand(ids.shape) < 0.15
    pred = net(ids.masked_fill(hide, MASK_ID))
    loss = cross_entropy(pred[hide], ids[hide])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0 or step == 299:
        print(f"{step:4d} cloze loss {loss.item():.4f}")
