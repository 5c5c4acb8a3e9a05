import torch
import torch.nn as nn
import torch.nn.functional as F


class Config:
    keys, values, slots = 64, 16, 24
    dim, heads, depth, ffn = 96, 3, 2, 256
    batch, steps, lr, warm = 32, 220, 2e-3, 20


def rotary(dim, length, base=10000.0):
    freq = base ** (-torch.arange(0, dim, 2).float() / dim)
    ang = torch.outer(torch.arange(length).float(), freq)
    return torch.cat([ang, ang], -1).cos(), torch.cat([ang, ang], -1).sin()


def turn(x, cos, sin):
    half = x.size(-1) // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.dim, c.dim, bias=False)
        self.k_proj = nn.Linear(c.dim, c.dim, bias=False)
        self.v_proj = nn.Linear(c.dim, c.dim, bias=False)
        self.o_proj = nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x, rope):
        B, T, D = x.shape
        q = self.q_proj(x).view(B, T, self.c.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.c.heads, -1).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.c.heads, -1).transpose(1, 2)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        q, k = turn(q, *rope), turn(k, *rope)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, D))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.in_norm, self.post_norm = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.attn = Attention(c)
        self.gate, self.up = nn.Linear(c.dim, c.ffn, bias=False), nn.Linear(c.dim, c.ffn, bias=False)
        self.down = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(self, x, rope):
        x = x + self.attn(self.in_norm(x), rope)
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Lookup(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.key, self.value = nn.Embedding(c.keys, c.dim), nn.Embedding(c.values + 1, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.norm = nn.RMSNorm(c.dim)
        self.head = nn.Linear(c.dim, c.values, bias=False)
        self.rope = rotary(c.dim // c.heads, 2 * c.slots, 1e6)

    def forward(self, k, v):
        x = self.key(k) + self.value(v)
        rope = tuple(r[: k.size(1)] for r in self.rope)
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))


def batch(c):
    stored = torch.rand(c.batch, c.keys).argsort(1)[:, : c.slots]
    values = torch.randint(c.values, (c.batch, c.slots))
    pick = torch.rand(c.batch, c.slots).argsort(1)[:, :8]
    k = torch.cat([stored, stored.gather(1, pick)], 1)
    v = torch.cat([values, torch.full((c.batch, 8), c.values)], 1)
    return k, v, values.gather(1, pick)


torch.manual_seed(61)
c = Config
model = Lookup(c)
optim = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.05)
for step in range(c.steps):
    for group in optim.param_groups:
        group["lr"] = c.lr * min(1.0, (step + 1) / c.warm)
    k, v, want = batch(c)
    logits = model(k, v)[:, c.slots:]
    loss = F.cross_entropy(logits.reshape(-1, c.values), want.reshape(-1))
    optim.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    if step % 20 == 0 or step == c.steps - 1:
        print(f"step {step:4d} loss {loss.item():.4f} hit {(logits.argmax(-1) == want).float().mean():.3f}")
