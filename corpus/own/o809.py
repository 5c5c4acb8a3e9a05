import math, time
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)

L, V = 16, 12
MASK = V
succ = torch.stack([torch.randperm(V)[:2] for _ in range(V)])
allowed = torch.zeros(V + 1, V + 1, dtype=torch.bool)
for i in range(V):
    allowed[i, succ[i]] = True


def walk(n):
    x = torch.randint(0, V, (n, L))
    for i in range(1, L):
        x[:, i] = succ[x[:, i - 1], torch.randint(0, 2, (n,))]
    return x


corpus = walk(12000)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.h = h

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.n2(x))


class Denoiser(nn.Module):
    def __init__(self, d=48, h=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(V + 1, d)
        self.pos = nn.Parameter(torch.randn(1, L, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, V + 1)

    def forward(self, x):
        h = self.tok(x) + self.pos
        for b in self.blocks:
            h = b(h)
        logits = self.head(self.norm(h))
        logits[..., MASK] = -1e9
        return logits


def corrupt(x):
    n = x.size(0)
    t = (torch.rand(1) + torch.arange(n) / n) % 1.0
    t = t * 0.95 + 0.05
    m = torch.rand(x.shape) < t[:, None]
    return torch.where(m, torch.full_like(x, MASK), x), m, t


def elbo(model, x):
    z, m, t = corrupt(x)
    ce = F.cross_entropy(model(z).transpose(1, 2), x, reduction="none")
    return ((ce * m).sum(1) / t / L).mean()


@torch.no_grad()
def generate(model, n=200, steps=16):
    z = torch.full((n, L), MASK)
    for s in range(steps, 0, -1):
        p = model(z).softmax(-1)
        new = torch.multinomial(p.view(-1, p.size(-1)), 1).view(n, L)
        reveal = (z == MASK) & (torch.rand(n, L) < 1.0 / s)
        z = torch.where(reveal, new, z)
    return z


model = Denoiser()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
STEPS, WARM = 520, 20
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min(1, (s + 1) / WARM) * 0.5 * (1 + math.cos(math.pi * s / STEPS)))

t0 = time.time()


def edge_rate(z):
    return allowed[z[:, :-1], z[:, 1:]].float().mean().item()


print(f"legal edges at init {edge_rate(generate(model)):.3f}")
for step in range(STEPS):
    batch = corpus[torch.randint(len(corpus), (48,))]
    loss = elbo(model, batch)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:4d}  nelbo/token {loss.item():.3f}")
model.eval()
gen = generate(model)
print(f"legal edges {edge_rate(gen):.3f} distinct {len(torch.unique(gen, dim=0))}/200")
print(gen[:3].tolist(), f"{time.time() - t0:.1f}s")
