import torch
from torch import nn, einsum

torch.manual_seed(101)

N_SYMBOLS, LENGTH, N_STATES = 30, 16, 4


def draw(n, gen):
    ids = torch.randint(N_STATES, N_SYMBOLS, (n, LENGTH), generator=gen)
    slots = torch.rand(n, LENGTH, generator=gen).argsort(1)[:, :N_STATES]
    marks = torch.rand(n, N_STATES, generator=gen).argsort(1)
    ids.scatter_(1, slots, marks)
    first = slots.argmin(1)
    return ids, marks.gather(1, first[:, None]).squeeze(1)


class Rotary(nn.Module):
    def __init__(self, dim, limit=64, base=1000.0):
        super().__init__()
        freq = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.outer(torch.arange(limit).float(), freq).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        n = x.shape[1]
        cos, sin = self.cos[None, :n, None], self.sin[None, :n, None]
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, rotary):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.rotary = rotary

    def forward(self, x):
        b, n, d = x.shape
        q = self.to_q(x)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        q, k = self.rotary(q), self.rotary(k)
        scores = einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        out = einsum("b h i j, b h j d -> b h i d", scores.softmax(-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class FeedForward(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))


class Encoder(nn.Module):
    def __init__(self, dim=64, heads=4, depth=3):
        super().__init__()
        self.token = nn.Embedding(N_SYMBOLS, dim)
        rotary = Rotary(dim // heads)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(dim), SelfAttention(dim, heads, rotary), nn.LayerNorm(dim), FeedForward(dim)])
            for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, N_STATES))

    def forward(self, ids):
        x = self.token(ids)
        for n1, attn, n2, ff in self.layers:
            x = x + attn(n1(x))
            x = x + ff(n2(x))
        return self.head(x.mean(1))


gen = torch.Generator().manual_seed(7)
net = Encoder()
optim = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
held = draw(400, gen)
for epoch in range(12):
    total = 0.0
    for _ in range(22):
        ids, want = draw(40, gen)
        loss = nn.functional.cross_entropy(net(ids), want)
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        total += loss.item()
    with torch.no_grad():
        acc = (net(held[0]).argmax(-1) == held[1]).float().mean().item()
    print(f"epoch {epoch + 1:2d}  loss {total / 22:.4f}  held-out acc {acc:.3f}")
