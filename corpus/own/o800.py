import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(6)
AA, GAP, MASK, R, C = 20, 20, 21, 12, 24


def family(n):
    """Columns conserved per family; coupled pairs (c, c+12) co-vary between sequences."""
    base = torch.randint(0, AA, (n, 1, C // 2))
    alt = (base + 7) % AA
    which = torch.rand(n, R, C // 2) < 0.4
    left = torch.where(which, alt, base)
    right = (left * 3 + 2) % AA
    msa = torch.cat([left, right], -1)
    gap = torch.rand(n, R, C) < 0.05
    return msa.masked_fill(gap, GAP)


class Axial(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.norm = h, nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        split = lambda t: t.unflatten(-1, (self.h, -1)).transpose(-2, -3)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v))
        return self.out(y.transpose(-2, -3).flatten(-2))


class MSABlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.row, self.col = Axial(d, h), Axial(d, h)
        self.ff = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.row(x)
        x = x + self.col(x.transpose(1, 2)).transpose(1, 2)
        return x + self.ff(x)


class MSAModel(nn.Module):
    def __init__(self, d=48, h=4, n=2):
        super().__init__()
        self.emb = nn.Embedding(AA + 2, d)
        self.col_pos = nn.Parameter(torch.randn(C, d) * 0.5)
        self.blocks = nn.Sequential(*[MSABlock(d, h) for _ in range(n)])
        self.norm = nn.LayerNorm(d)
        self.bias = nn.Parameter(torch.zeros(AA))

    def forward(self, msa):
        x = self.norm(self.blocks(self.emb(msa) + self.col_pos))
        return x @ self.emb.weight[:AA].t() * x.size(-1) ** -0.5 + self.bias


def corrupt(msa):
    pick = (torch.rand(msa.shape) < 0.12) & (msa != GAP)
    labels = msa.masked_fill(~pick, -100)
    return msa.masked_fill(pick, MASK), labels


model = MSAModel()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
total = 260
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=total, pct_start=0.15)
val_in, val_y = corrupt(family(24))
for it in range(total):
    x, y = corrupt(family(8))
    n_tok = (y >= 0).sum()
    loss = F.cross_entropy(model(x).flatten(0, 2), y.flatten(), reduction="sum") / n_tok
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if it % 25 == 0 or it == total - 1:
        with torch.no_grad():
            out = model(val_in)
            m = val_y >= 0
            acc = (out.argmax(-1)[m] == val_y[m]).float().mean()
        print(f"iter {it:3d} nll {loss.item():.4f} over {int(n_tok)} tokens | val acc {acc:.3f}")
