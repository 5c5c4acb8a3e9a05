import torch, torch.nn as nn, torch.nn.functional as F
from pydoc_data.topics import topics


torch.manual_seed(33)
text = "".join(topics[k] for k in sorted(topics))[:300000].lower()
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
V = len(chars) + 1
MASK = V - 1
data = torch.tensor([stoi[c] for c in text])
split = int(0.95 * len(data))
train, val = data[:split], data[split:]
L = 48

def get(src, n, g=None):
    st = torch.randint(0, len(src) - L, (n,), generator=g)
    return src[st[:, None] + torch.arange(L)]

def corrupt(x, g=None):
    sel = torch.rand(x.shape, generator=g) < 0.15
    r = torch.rand(x.shape, generator=g)
    y = torch.where(sel, x, -100)
    z = torch.where(sel & (r < 0.8), MASK, x)
    rnd = torch.randint(0, V - 1, x.shape, generator=g)
    z = torch.where(sel & (r >= 0.9), rnd, z)
    return z, y

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        slopes = torch.tensor([2.0 ** -i for i in range(h)])
        dist = (torch.arange(L)[:, None] - torch.arange(L)[None]).float()

        w = torch.stack([torch.where(dist > 0, 0.5, 2.0) if i % 2 else torch.where(dist > 0, 2.0, 0.5) for i in range(h)])
        self.register_buffer("bias", -slopes[:, None, None] * dist.abs() * w, persistent=False)
    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :T, :T])
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.n2(x))

class MLM(nn.Module):
    def __init__(self, d=64, h=4, n=2):
        super().__init__()
        self.e = nn.Embedding(V, d)
        nn.init.normal_(self.e.weight, std=0.5)
        self.b = nn.Sequential(*[Block(d, h) for _ in range(n)])
        self.n = nn.LayerNorm(d)
        self.out = nn.Linear(d, V)
    def forward(self, x):
        return self.out(self.n(self.b(self.e(x))))

m = MLM()
opt = torch.optim.AdamW(m.parameters(), lr=3e-3, betas=(0.9, 0.98))
g = torch.Generator().manual_seed(1)
vx, vy = corrupt(get(val, 64, g), g)
steps = 240
sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1, (s + 1) / 20) * (1 - s / (steps + 1)))
avg = 0
for s in range(steps):
    x, y = corrupt(get(train, 24))
    loss = F.cross_entropy(m(x).view(-1, V), y.view(-1))
    opt.zero_grad(); loss.backward(); opt.step(); sch.step()
    avg = loss.item() if s == 0 else 0.9 * avg + 0.1 * loss.item()
    if s % 20 == 0 or s == steps - 1:
        with torch.no_grad():
            v = F.cross_entropy(m(vx).view(-1, V), vy.view(-1)).item()
        print(f"step {s:3d} mlm loss {avg:.4f} val {v:.4f} (uniform {torch.tensor(float(V)).log():.2f})")
