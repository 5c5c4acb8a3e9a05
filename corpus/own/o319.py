import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS, LENGTH = 16, 20


class Rotary(nn.Module):
    def __init__(self, dim, length=256):
        super().__init__()
        freq = 1.0 / (1000 ** (torch.arange(0, dim, 2).float() / dim))
        angle = torch.outer(torch.arange(length).float(), freq).repeat_interleave(2, -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        n = x.shape[1]
        cos, sin = self.cos[:n].unsqueeze(1), self.sin[:n].unsqueeze(1)
        swapped = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
        return x * cos + swapped * sin


class Encoder(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.rotary = Rotary(d // heads)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.ff1, self.ff2 = nn.Linear(d, 2 * ff), nn.Linear(ff, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        a, g = self.ff1(self.norm2(x)).chunk(2, -1)
        return x + self.ff2(a * F.gelu(g))


class Tagger(nn.Module):
    def __init__(self, d=64, tags=3):
        super().__init__()
        self.embed = nn.Embedding(KINDS, d)
        self.layers = nn.Sequential(Encoder(d, 4, 96), Encoder(d, 4, 96))
        self.tags = nn.Sequential(nn.RMSNorm(d), nn.Linear(d, tags))

    def forward(self, ids):
        return self.tags(self.layers(self.embed(ids)))


def batch(n, gen):
    x = torch.randint(KINDS, (n, LENGTH), generator=gen)
    before, after = x.roll(1, 1), x.roll(-1, 1)
    y = (x > before).long() + (x > after).long()
    y[:, 0] = y[:, -1] = -100
    return x, y


torch.manual_seed(19)
gen = torch.Generator().manual_seed(20)
net = Tagger()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(200):
    x, y = batch(48, gen)
    logits = net(x)
    loss = F.cross_entropy(logits.reshape(-1, 3), y.reshape(-1), ignore_index=-100)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    if step % 20 == 0 or step == 199:
        real = y != -100
        print(f"step {step:3d} loss {loss.item():.4f} right {(logits.argmax(-1) == y)[real].float().mean():.3f}")
