import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(41)


class MAB(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ln0, self.ln1 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, q, kv):
        h = self.ln0(q + self.attn(q, kv, kv, need_weights=False)[0])
        return self.ln1(h + self.ff(h))


class ISAB(nn.Module):
    def __init__(self, dim, heads, num_inds):
        super().__init__()
        self.I = nn.Parameter(torch.empty(1, num_inds, dim))
        nn.init.xavier_uniform_(self.I)
        self.mab0, self.mab1 = MAB(dim, heads), MAB(dim, heads)

    def forward(self, x):
        return self.mab1(x, self.mab0(self.I.expand(x.shape[0], -1, -1), x))


class PMA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.S = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.xavier_uniform_(self.S)
        self.mab = MAB(dim, heads)

    def forward(self, x):
        return self.mab(self.S.expand(x.shape[0], -1, -1), x)[:, 0]


class SetTransformer(nn.Module):
    def __init__(self, dim_input=2, dim=48, heads=4, num_inds=6, num_classes=5):
        super().__init__()
        self.inp = nn.Linear(dim_input, dim)
        self.enc = nn.Sequential(ISAB(dim, heads, num_inds), ISAB(dim, heads, num_inds))
        self.pool = PMA(dim, heads)
        self.out = nn.Linear(dim, num_classes)

    def forward(self, x):
        return self.out(self.pool(self.enc(self.inp(x))))


def clouds(n, m=24):
    y = torch.randint(0, 5, (n,))
    u = torch.rand(n, m) * 2 * torch.pi
    w = torch.rand(n, m) * 2 - 1
    shapes = torch.stack([
        torch.stack([u.cos(), u.sin()], -1),
        torch.stack([w, w.sign() * w.abs()], -1),
        torch.stack([w, 2 * w ** 2 - 1], -1),
        torch.stack([w, torch.sin(3 * w)], -1),
        torch.stack([u.cos(), 0.4 * u.sin()], -1),
    ], dim=1)
    pts = shapes[torch.arange(n), y] + 0.08 * torch.randn(n, m, 2)
    return pts * (0.8 + 0.4 * torch.rand(n, 1, 1)), y


model = SetTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=30, T_mult=2, eta_min=1e-5)
accumulate = 3
optimizer.zero_grad()
for micro_step in range(210 * accumulate):
    pts, y = clouds(16)
    logits = model(pts)
    loss = F.cross_entropy(logits, y, label_smoothing=0.1)
    (loss / accumulate).backward()
    if (micro_step + 1) % accumulate == 0:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if micro_step % 60 == 0:
        print(f"update {micro_step // accumulate} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
model.eval()
with torch.no_grad():
    pts, y = clouds(500)
    print(f"accuracy {(model(pts).argmax(1) == y).float().mean().item():.3f}")
