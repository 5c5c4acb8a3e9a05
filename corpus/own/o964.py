import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(101)
VOCAB, T = 36, 40
gen = torch.Generator().manual_seed(101)


def phrases(n):
    root = torch.randint(0, VOCAB, (n,), generator=gen)
    interval = torch.randint(1, 4, (n,), generator=gen)
    note = (root[:, None] + interval[:, None] * torch.arange(T)) % VOCAB
    ornament = torch.rand(n, T, generator=gen) < 0.04
    out = torch.where(ornament, torch.randint(0, VOCAB, (n, T), generator=gen), note)
    return out


class SignMomentum(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.g * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * d // heads, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x, bias):
        b, t, d = x.shape
        y = self.n1(x)
        q = self.q(y).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(y).chunk(2, -1)
        score = torch.einsum("bhtc,bsc->bhts", q, k) / math.sqrt(d // self.heads) + bias[:, :t, :t]
        x = x + self.o(torch.einsum("bhts,bsc->bthc", score.softmax(-1), v).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class MusicLM(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        nn.init.normal_(self.emb.weight, std=d ** -0.5)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm = RMSNorm(d)
        i = torch.arange(T)
        dist = (i[:, None] - i[None]).float()
        slopes = torch.tensor([2.0 ** (-2 * (h + 1)) for h in range(heads)])
        bias = -slopes[:, None, None] * dist
        self.register_buffer("bias", bias.masked_fill(dist < 0, float("-inf")), persistent=False)

    def forward(self, x):
        h = self.emb(x) * self.emb.embedding_dim ** 0.5
        for b in self.blocks:
            h = b(h, self.bias)
        return F.linear(self.norm(h), self.emb.weight)


train, valid = phrases(6000), phrases(300)
model = MusicLM()
opt = SignMomentum(model.parameters(), lr=1e-3)
STEPS = 400
for step in range(STEPS):
    lr = 1e-3 * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    for group in opt.param_groups:
        group["lr"] = lr
    x = train[torch.randint(0, len(train), (32,), generator=gen)]
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), label_smoothing=0.05)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 50 == 0:
        print(f"step {step + 1} lr {lr:.2e} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    logits = model(valid[:, :-1])
    nll = F.cross_entropy(logits.flatten(0, 1), valid[:, 1:].flatten()).item()
    acc = (logits[:, 12:].argmax(-1) == valid[:, 13:]).float().mean().item()
print(f"held-out nll {nll:.4f} next-note accuracy after twelve notes {acc:.4f}")
