import math

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

POINTS, KINDS = 40, 5


class Clouds(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(210)
        while True:
            k = int(torch.randint(KINDS, (1,), generator=g))
            u, v = torch.rand(2, POINTS, generator=g) * 2 * math.pi
            z = torch.rand(POINTS, generator=g) * 2 - 1
            if k == 0:
                p = torch.stack([u.cos() * (1 - z ** 2).sqrt(), u.sin() * (1 - z ** 2).sqrt(), z], -1)
            elif k == 1:
                p = torch.stack([u.cos(), u.sin(), z], -1)
            elif k == 2:
                p = torch.stack([(1 + 0.4 * v.cos()) * u.cos(), (1 + 0.4 * v.cos()) * u.sin(), 0.4 * v.sin()], -1)
            elif k == 3:
                p = torch.rand(POINTS, 3, generator=g) * 2 - 1
            else:
                p = torch.stack([(1 - z) / 2 * u.cos(), (1 - z) / 2 * u.sin(), z], -1)
            yield p + 0.03 * torch.randn(POINTS, 3, generator=g), k


class Induced(nn.Module):
    def __init__(self, d, seeds, heads=4):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, seeds, d))
        self.gather = nn.MultiheadAttention(d, heads, batch_first=True)
        self.spread = nn.MultiheadAttention(d, heads, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        s = self.seeds.expand(x.size(0), -1, -1)
        s = s + self.gather(s, self.n1(x), x, need_weights=False)[0]
        x = x + self.spread(x, s, s, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class CloudNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.body = nn.Sequential(Induced(d, 8), Induced(d, 8))
        self.head = nn.Linear(d, KINDS, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, p):
        return self.head(self.body(self.lift(p)).amax(1))


torch.manual_seed(21)
net = CloudNet()
loss_fn = nn.CrossEntropyLoss()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
seen = []
for step, (p, k) in enumerate(DataLoader(Clouds(), batch_size=32, shuffle=False)):
    out = net(p)
    loss = loss_fn(out, k)
    for q in net.parameters():
        q.grad = None
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    seen.append(loss.item())
    if step % 15 == 0:
        print(f"step {step} loss {sum(seen[-15:]) / len(seen[-15:]):.4f} acc {(out.argmax(1) == k).float().mean():.2f}")
    if step == 165:
        break
