import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1234)


def build_cache(n, dim, base=1000.0):
    inv = base ** (-torch.arange(0, dim, 2).float() / dim)
    ang = torch.outer(torch.arange(n).float(), inv)
    return torch.cat([ang, ang], -1).cos(), torch.cat([ang, ang], -1).sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


class Rotary(nn.Module):
    def __init__(self, dim, max_len=256):
        super().__init__()
        cos, sin = build_cache(max_len, dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        n = x.shape[1]
        cos, sin = self.cos[:n, None], self.sin[:n, None]
        return x * cos + rotate_half(x) * sin


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.rotary = Rotary(self.hd)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(B, N, C))


class Encoder(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.att = nn.ModuleList([SelfAttention(dim, heads) for _ in range(depth)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim)) for _ in range(depth)])
        self.n1 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.n2 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.nf = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for a, m, p, q in zip(self.att, self.mlp, self.n1, self.n2):
            x = x + a(p(x))
            x = x + m(q(x))
        return self.head(self.nf(x))


V, N, MASK = 12, 32, 12


def sequences(b):
    start = torch.randint(0, V, (b, 1))
    stride = torch.randint(1, 6, (b, 1))
    return (start + stride * torch.arange(N)) % V


model = Encoder(V + 1)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
for i in range(220):
    clean = sequences(24)
    hit = torch.rand(clean.shape) < 0.2
    noisy = clean.masked_fill(hit, MASK)
    logits = model(noisy)
    loss = F.cross_entropy(logits[hit], clean[hit])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if i % 20 == 0 or i == 219:
        print(f"mlm step={i} loss={loss.item():.4f} acc={(logits[hit].argmax(-1) == clean[hit]).float().mean():.3f}")
