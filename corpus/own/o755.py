import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(222)
V, L, C = 60, 16, 8
STATE = torch.randint(0, C, (V,))


def docs(n):
    x = torch.randint(0, V, (n, L))
    y = torch.stack([torch.bincount(STATE[r], minlength=C) for r in x]).float()
    y = (y + 0.3 * torch.rand_like(y)).argmax(1)
    return x, y


class Experts(nn.Module):
    def __init__(self, d, n=4, k=2):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)
        self.w1 = nn.Parameter(torch.randn(n, d, 2 * d) * d ** -0.5)
        self.w2 = nn.Parameter(torch.randn(n, 2 * d, d) * (2 * d) ** -0.5)
        self.k = k

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, idx = p.topk(self.k, -1)
        w = torch.zeros_like(p).scatter(-1, idx, top / top.sum(-1, keepdim=True))
        h = F.gelu(torch.einsum("bld,ndh->blnh", x, self.w1))
        y = torch.einsum("blnh,nhd,bln->bld", h, self.w2, w)
        load = torch.zeros_like(p).scatter(-1, idx, 1.0).mean((0, 1))
        self.balance = (load * p.mean((0, 1))).sum() * p.size(-1) / self.k
        return y


class Net(nn.Module):
    def __init__(self, d, experts):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.ff = Experts(d) if experts else nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))
        self.out = nn.Linear(d, C)

    def forward(self, x):
        h = self.emb(x)
        z = self.n1(h)
        h = h + self.att(z, z, z, need_weights=False)[0]
        return self.out((h + self.ff(self.n2(h))).mean(1))


teacher = Net(48, True)
X, Y = docs(6000)
TX, TY = docs(800)
acc = lambda m: (m(TX).argmax(-1) == TY).float().mean().item()
opt = torch.optim.AdamW(teacher.parameters(), lr=3e-3)
for s in range(181):
    j = torch.randint(0, len(X), (48,))
    loss = F.cross_entropy(teacher(X[j]), Y[j]) + 0.01 * teacher.ff.balance
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 60 == 0:
        with torch.no_grad():
            print(f"teacher {s} loss {loss.item():.4f} acc {acc(teacher):.3f}")

teacher.eval().requires_grad_(False)
student = Net(24, False)
opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
TEMP = 4.0
for s in range(301):
    x = torch.randint(0, V, (64, L))
    soft = (teacher(x) / TEMP).softmax(-1)
    loss = F.cross_entropy(student(x) / TEMP, soft) * TEMP ** 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 60 == 0:
        with torch.no_grad():
            agree = (student(TX).argmax(-1) == teacher(TX).argmax(-1)).float().mean()
            print(f"student {s} loss {loss.item():.4f} acc {acc(student):.3f} agreement {agree:.3f}")
