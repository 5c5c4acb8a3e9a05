import warnings
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
torch.manual_seed(37)
torch.set_num_threads(1)
V, T, K = 30, 14, 6


def pretext(n):
    x = torch.randint(1, V, (n, T))
    return x, x.roll(1, 1)


def labelled(n):
    x = torch.randint(1, V, (n, T))
    even = (x % 2 == 0).float().mean(1)
    big = (x > V // 2).float().mean(1)
    y = (2.99 * even).long() * 2 + (big > 0.5).long()
    return x, y.clamp(max=K - 1)


class Adapter(nn.Module):
    def __init__(self, d, r=12):
        super().__init__()
        self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class Block(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.att = nn.MultiheadAttention(d, h, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ad1, self.ad2 = nn.Identity(), nn.Identity()

    def forward(self, x):
        y = self.n1(x)
        x = x + self.ad1(self.att(y, y, y, need_weights=False)[0])
        return x + self.ad2(self.ff(self.n2(x)))


class Encoder(nn.Module):
    def __init__(self, d=48, n=3):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Parameter(0.3 * torch.randn(T, d))
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.norm = nn.LayerNorm(d)
        self.ckpt = False

    def forward(self, x):
        h = self.emb(x) + self.pos
        for b in self.blocks:
            h = checkpoint(b, h, use_reentrant=False) if self.ckpt else b(h)
        return self.norm(h)


enc = Encoder()
lm = nn.Linear(48, V)
opt = torch.optim.Adam([*enc.parameters(), *lm.parameters()], lr=2e-3)
for i in range(120):
    x, y = pretext(48)
    loss = F.cross_entropy(lm(enc(x)).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 40 == 0 or i == 119:
        print(f"pretrain {i:3d} loss {loss.item():.3f}")

enc.requires_grad_(False)
for b in enc.blocks:
    b.ad1, b.ad2 = Adapter(48), Adapter(48)
enc.ckpt = True
head = nn.Linear(48, K)
tuned = [p for p in enc.parameters() if p.requires_grad] + list(head.parameters())
print("tunable parameters", sum(p.numel() for p in tuned))
opt = torch.optim.AdamW(tuned, lr=4e-3, weight_decay=0.0)
xt, yt = labelled(800)
print(f"majority {torch.bincount(yt).max().item() / len(yt):.3f}")
for i in range(200):
    x, y = labelled(48)
    loss = F.cross_entropy(head(enc(x).mean(1)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 20 == 0 or i == 199:
        with torch.no_grad():
            a = (head(enc(xt).mean(1)).argmax(1) == yt).float().mean().item()
        print(f"tune {i:3d} loss {loss.item():.4f} test acc {a:.3f}")
