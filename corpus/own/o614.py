import math
import torch
from torch import nn, einsum
import torch.nn.functional as F

torch.manual_seed(42)


def exists(v):
    return v is not None


def default(v, d):
    return v if exists(v) else d


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        self.register_buffer("inv_freq", theta ** -(torch.arange(0, dim, 2).float() / dim))

    def forward(self, n):
        f = einsum("i , j -> i j", torch.arange(n).type_as(self.inv_freq), self.inv_freq)
        return torch.cat((f, f), dim=-1)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(pos, t):
    return t * pos.cos() + rotate_half(t) * pos.sin()


class DepthwiseConv(nn.Module):
    def __init__(self, dim, kernel_size=3):
        super().__init__()
        self.net = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)

    def forward(self, x):
        n = x.shape[1]
        return self.net(x.transpose(1, 2))[..., :n].transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim, heads=4, kv_heads=None, dim_head=16):
        super().__init__()
        kv_heads = default(kv_heads, heads)
        self.heads, self.kv_heads = heads, kv_heads
        self.norm = RMSNorm(dim)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * kv_heads * dim_head, bias=False)
        self.conv_kv = DepthwiseConv(2 * kv_heads * dim_head)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)
        self.scale = dim_head**-0.5

    def forward(self, x, pos):
        b, n, _ = x.shape
        x = self.norm(x)
        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2)
        kv = self.to_kv(x)
        kv = kv + self.conv_kv(kv)
        k, v = kv.view(b, n, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary_pos_emb(pos, q), apply_rotary_pos_emb(pos, k)
        g = self.heads // self.kv_heads
        k, v = (t.repeat_interleave(g, dim=1) for t in (k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        causal_mask = torch.ones((n, n), dtype=torch.bool).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class GEGLU(nn.Module):
    def forward(self, x):
        x, gate = x.chunk(2, dim=-1)
        return F.gelu(gate) * x


def FeedForward(dim, mult=4):
    inner = int(dim * mult * 2 / 3)
    return nn.Sequential(RMSNorm(dim), nn.Linear(dim, inner * 2, bias=False), GEGLU(), nn.Linear(inner, dim, bias=False))


class Transformer(nn.Module):
    def __init__(self, *, num_tokens, dim, depth, heads=4, kv_heads=2, dim_head=16):
        super().__init__()
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.rotary = RotaryEmbedding(dim_head)
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(nn.ModuleList([Attention(dim, heads, kv_heads, dim_head), FeedForward(dim)]))
        self.to_logits = nn.Sequential(RMSNorm(dim), nn.Linear(dim, num_tokens, bias=False))

    def forward(self, x):
        pos = self.rotary(x.shape[1])
        x = self.token_emb(x)
        for attn, ff in self.layers:
            x = attn(x, pos) + x
            x = ff(x) + x
        return self.to_logits(x)


class AutoregressiveWrapper(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        inp, target = x[:, :-1], x[:, 1:]
        logits = self.net(inp)
        return F.cross_entropy(logits.transpose(1, 2), target)

    @torch.no_grad()
    def generate(self, start, length):
        out = start
        for _ in range(length):
            logits = self.net(out)[:, -1]
            out = torch.cat((out, torch.multinomial(logits.softmax(-1), 1)), dim=-1)
        return out


NUM_TOKENS, SEQ_LEN, BATCH = 32, 32, 12
trans = torch.distributions.Dirichlet(torch.full((NUM_TOKENS,), 0.12)).sample((NUM_TOKENS,))


def cycle(n):
    while True:
        s = torch.randint(NUM_TOKENS, (n, 1))
        for _ in range(SEQ_LEN):
            s = torch.cat((s, torch.multinomial(trans[s[:, -1]], 1)), dim=1)
        yield s


model = AutoregressiveWrapper(Transformer(num_tokens=NUM_TOKENS, dim=48, depth=2))
optim = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
loader = cycle(BATCH)

for i in range(220):
    loss = model(next(loader))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optim.step()
    optim.zero_grad()
    if i % 20 == 0:
        print(f"step {i} training loss: {loss.item():.4f}")

sampled = model.generate(torch.randint(NUM_TOKENS, (16, 1)), 30)
lp = trans[sampled[:, :-1], sampled[:, 1:]].clamp(min=1e-8).log().mean()
print(f"final loss {loss.item():.4f} log-likelihood of samples per token {lp.item():.3f}")
