import argparse as _a
import inspect
import textwrap as _t

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.scale, 1e-5)


class ShortConv(nn.Module):
    def __init__(self, dim, width=3):
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, width, padding=width // 2, groups=dim)

    def forward(self, x):
        y = self.conv(x.transpose(1, 2))[..., :x.size(1)]
        return y.transpose(1, 2)


def apply_rope(x, freqs):
    xc = torch.view_as_complex(x.float().contiguous().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(xc * freqs).flatten(-2)


class PrimerAttention(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.hd = heads, kv_heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * kv_heads * self.hd, bias=False)
        self.q_conv = ShortConv(dim)
        self.kv_conv = ShortConv(2 * kv_heads * self.hd)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, freqs):
        B, T, _ = x.shape
        q = self.q_conv(self.q(x)).view(B, T, self.heads, self.hd).transpose(1, 2)
        k, v = self.kv_conv(self.kv(x)).view(B, T, 2, self.kv_heads, self.hd).permute(2, 0, 3, 1, 4)
        q, k = apply_rope(q, freqs[:T]), apply_rope(k, freqs[:T])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.norm_a, self.norm_m = RMSNorm(dim), RMSNorm(dim)
        self.attn = PrimerAttention(dim, heads, kv_heads)
        self.up, self.down = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x, freqs):
        x = x + self.attn(self.norm_a(x), freqs)
        return x + self.down(F.relu(self.up(self.norm_m(x))) ** 2)


class Primer(nn.Module):
    def __init__(self, vocab, dim=64, depth=2, heads=4, kv_heads=2, ctx=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, kv_heads) for _ in range(depth))
        self.norm = RMSNorm(dim)
        hd = dim // heads
        angle = torch.outer(torch.arange(ctx), 1e4 ** (-torch.arange(0, hd, 2) / hd))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angle), angle), persistent=False)
        nn.init.normal_(self.tok.weight, std=0.06)

    def forward(self, ids):
        x = self.tok(ids)
        for layer in self.layers:
            x = layer(x, self.freqs)
        return F.linear(self.norm(x), self.tok.weight)


def main():
    torch.manual_seed(21)
    source = inspect.getsource(_a) + inspect.getsource(_t)
    chars = sorted(set(source))
    data = torch.tensor([chars.index(c) for c in source])
    windows = data.unfold(0, 49, 7)
    net = Primer(len(chars))
    optim = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(optim, 0.05, 1.0, 25)
    order = torch.randperm(len(windows))
    for step in range(160):
        batch = windows[order[step * 14 % (len(order) - 14):][:14]]
        logits = net(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        sched.step()
        if step % 20 == 0 or step == 159:
            print(f"{step:>4} train loss {loss.item():.3f}")


main()
