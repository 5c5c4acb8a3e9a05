import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(10)


class FusedRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        a, b = g.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1), None, None


def tables(length, dim, base=1000.0):
    inv = base ** (-torch.arange(0, dim // 2).float() / (dim // 2))
    ang = torch.arange(length).float()[:, None] * inv
    return ang.cos(), ang.sin()


class RotaryAttention(nn.Module):
    def __init__(self, d, heads, length):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(d, d, bias=False) for _ in range(4)
        )
        cos, sin = tables(length, d // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            p(x).view(b, t, self.heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = FusedRotary.apply(q, self.cos[:t], self.sin[:t])
        k = FusedRotary.apply(k, self.cos[:t], self.sin[:t])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, length):
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attn = RotaryAttention(d, heads, length)
        self.gate, self.up, self.down = (
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(d, 2 * d, bias=False),
            nn.Linear(2 * d, d, bias=False),
        )

    def forward(self, x):
        x = x + self.attn(self.input_norm(x))
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, vocab, d=64, heads=2, depth=2, length=33):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.layers = nn.Sequential(*(Block(d, heads, length) for _ in range(depth)))
        self.norm = nn.RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.embed(ids))))


SYMBOLS, LAG, LENGTH = 24, 6, 30


def batch(n):
    x = torch.randint(SYMBOLS, (n, LENGTH))
    return x, x[:, :-LAG]


model = Model(SYMBOLS)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
for step in range(200):
    x, y = batch(32)
    out = model(x)[:, LAG:]
    loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 199:
        print(
            f"step {step} loss {loss.item():.4f} acc {(out.argmax(-1) == y).float().mean().item():.3f}"
        )
