import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, CTX, DIM, HEADS = 30, 24, 64, 4


class T5Attention(nn.Module):
    def __init__(self):
        super().__init__()
        e = DIM // HEADS
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.k = nn.Linear(DIM, DIM, bias=False)
        self.v = nn.Linear(DIM, DIM, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        nn.init.normal_(self.q.weight, std=(DIM * e) ** -0.5)
        for lin in (self.k, self.v, self.o):
            nn.init.normal_(lin.weight, std=DIM ** -0.5)
        self.rel = nn.Parameter(torch.zeros(HEADS, CTX))

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        dist = torch.arange(T)[:, None] - torch.arange(T)[None, :]
        scores = q @ k.transpose(-1, -2) + self.rel[:, dist.clamp(min=0)]
        scores = scores.masked_fill(dist < 0, -1e9)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, DIM))


class Decoder(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.att = nn.ModuleList(T5Attention() for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM)) for _ in range(depth))
        self.norm = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(2 * depth + 1))

    def forward(self, idx):
        h = self.emb(idx)
        for i, (a, m) in enumerate(zip(self.att, self.mlp)):
            h = h + a(self.norm[2 * i](h))
            h = h + m(self.norm[2 * i + 1](h))
        return self.norm[-1](h) * DIM ** -0.5 @ self.emb.weight.T


def batch(n, gen):
    """noisy second-order recurrences"""
    x = torch.randint(0, VOCAB, (n, CTX + 1), generator=gen)
    for t in range(2, CTX + 1):
        ruled = (x[:, t - 1] + x[:, t - 2] // 3) % VOCAB
        keep = torch.rand(n, generator=gen) < 0.9
        x[:, t] = torch.where(keep, ruled, x[:, t])
    return x[:, :-1], x[:, 1:]


torch.manual_seed(1)
gen = torch.Generator().manual_seed(1)
net = Decoder()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
for step in range(260):
    x, y = batch(48, gen)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 259:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
with torch.no_grad():
    x, y = batch(256, gen)
    print(f"held-out loss {F.cross_entropy(net(x).flatten(0, 1), y.flatten()).item():.4f}")
