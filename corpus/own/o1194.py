import itertools
import math
import time
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(42)
N_MEL, FRAMES = (32, 48)
PHONES = torch.tensor([[4.0, 14.0], [9.0, 22.0], [6.0, 27.0]])
WORDS = list(itertools.permutations(range(3)))


def synth(n, g):
    label = torch.randint(len(WORDS), (n,), generator=g)
    order = torch.tensor(WORDS)[label]
    lens = torch.randint(7, 13, (n, 3), generator=g)
    onset = torch.randint(0, FRAMES - 36 - 2, (n, 1), generator=g)
    ends = onset + lens.cumsum(1)
    begins = ends - lens
    t = torch.arange(FRAMES)
    mel = torch.arange(N_MEL).float()
    spec = torch.zeros(n, FRAMES, N_MEL)
    shift = torch.rand(n, 1, 1, generator=g) * 3 - 1.5
    for k in range(3):
        on = (t >= begins[:, k : k + 1] + 1) & (t < ends[:, k : k + 1] - 1)
        formants = PHONES[order[:, k]]
        shape = torch.exp(-0.5 * ((mel - formants[:, :, None] - shift) / 1.2) ** 2).sum(1)
        spec += on[:, :, None] * shape[:, None, :]
    loud = 0.7 + 0.6 * torch.rand(n, 1, 1, generator=g)
    return (spec * loud + 0.25 * torch.randn(n, FRAMES, N_MEL, generator=g), label)


class Rotary(nn.Module):
    def __init__(self, dim, max_len=512, base=10000.0):
        super().__init__()
        freq = base ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.arange(max_len).float()[:, None] * freq
        self.register_buffer("cos", angle.cos()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None], persistent=False)

    def forward(self, x):
        n = x.shape[1]
        cos, sin = (self.cos[:n], self.sin[:n])
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, rotary):
        super().__init__()
        self.heads, self.rotary = (heads, rotary)
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q = self.wq(x).view(B, T, self.heads, -1).transpose(1, 2)
        k = self.wk(x).view(B, T, self.heads, -1).transpose(1, 2)
        v = self.wv(x).view(B, T, self.heads, -1).transpose(1, 2)
        q, k = (self.rotary(q), self.rotary(k))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.wo(out.transpose(1, 2).reshape(B, T, D))


class Encoder(nn.Module):
    def __init__(self, dim=64, heads=4, depth=2):
        super().__init__()
        self.proj = nn.Linear(N_MEL, dim)
        rotary = Rotary(dim // heads)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        nn.LayerNorm(dim),
                        SelfAttention(dim, heads, rotary),
                        nn.LayerNorm(dim),
                        nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)),
                    ]
                )
            )
        self.final = nn.LayerNorm(dim)
        self.classify = nn.Linear(dim, len(WORDS))

    def forward(self, spec):
        x = self.proj(spec)
        for n1, att, n2, ff in self.layers:
            x = x + att(n1(x))
            x = x + ff(n2(x))
        return self.classify(self.final(x).mean(1))


def spec_augment(spec, g):
    f0 = int(torch.randint(N_MEL - 3, (1,), generator=g))
    spec = spec.clone()
    spec[:, :, f0 : f0 + 3] = 0
    return spec


net = Encoder()
steps = 320
opt = torch.optim.AdamW(net.parameters(), lr=0.002, weight_decay=0.02)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.002, total_steps=steps, pct_start=0.1)
g = torch.Generator().manual_seed(0)
t0 = time.time()
for step in range(steps):
    spec, label = synth(48, g)
    logits = net(spec_augment(spec, g))
    loss = F.cross_entropy(logits, label, label_smoothing=0.05)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 40 == 0 or step == steps - 1:
        acc = (logits.argmax(-1) == label).float().mean().item()
        print(f"{step:4d} loss {loss.item():.4f} batch acc {acc:.2f} {time.time() - t0:.1f}s")
net.eval()
with torch.no_grad():
    spec, label = synth(1200, torch.Generator().manual_seed(777))
    acc = (net(spec).argmax(-1) == label).float().mean().item()
print(f"test accuracy {acc:.3f} (chance {1 / len(WORDS):.3f})")
