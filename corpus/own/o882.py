import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
V, N, D, DEPTH = 18, 12, 80, 5


def batch(n, g):
    x = torch.randint(0, V, (n, N), generator=g)
    return x, x.sort(1).values


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(D, 4, batch_first=True)
        self.a = nn.LayerNorm(D)
        self.b = nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 3 * D), nn.GELU(), nn.Linear(3 * D, D))

    def forward(self, x, t):
        z = self.a(x + t)
        x = x + self.mix(z, z, z, need_weights=False)[0]
        return x + self.ff(self.b(x))


class UniversalSorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(V, D) * 0.11)
        self.place = nn.Parameter(torch.randn(N, D) * 0.11)
        self.clock = nn.Parameter(torch.randn(DEPTH, D) * 0.05)
        cell = Recurrence()
        self.cells = nn.ModuleList([cell] * DEPTH)
        self.final = nn.LayerNorm(D)

    def forward(self, x):
        h = self.table[x] + self.place
        for i, cell in enumerate(self.cells):
            h = cell(h, self.clock[i])
        return self.final(h) @ self.table.t()


g = torch.Generator().manual_seed(1)
m = UniversalSorter()
opt = torch.optim.AdamW(m.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
sch = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=300, pct_start=0.15)
for i in range(300):
    x, y = batch(32, g)
    loss = F.cross_entropy(m(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    sch.step()
    if i % 30 == 0:
        print(i, round(loss.item(), 4))
x, y = batch(500, g)
with torch.no_grad():
    print("held-out sorting accuracy", round((m(x).argmax(-1) == y).float().mean().item(), 4))
