import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
V, T, D, H, L = 29, 32, 64, 4, 3


def recurrences(n, mults, g):
    a = torch.tensor(mults)[torch.randint(len(mults), (n,), generator=g)]
    b = torch.randint(0, V, (n,), generator=g)
    x = [torch.randint(0, V, (n,), generator=g)]
    for _ in range(T):
        x.append((a * x[-1] + b) % V)
    return torch.stack(x, 1)


class AdaptedLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_out, d_in) / math.sqrt(d_in))
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.rank = 0

    def set_rank(self, r, alpha=16.0):
        self.down = nn.Parameter(torch.randn(r, self.weight.shape[1]) / math.sqrt(self.weight.shape[1]))
        self.up = nn.Parameter(torch.zeros(self.weight.shape[0], r))
        self.rank, self.gain = r, alpha / r

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        if self.rank:
            y = y + self.gain * ((x @ self.down.T) @ self.up.T)
        return y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = AdaptedLinear(D, 3 * D), AdaptedLinear(D, D)
        self.fc, self.proj = AdaptedLinear(D, 4 * D), AdaptedLinear(4 * D, D)

    def forward(self, x):
        B, S, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, S, 3, H, D // H).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(B, S, D))
        return x + self.proj(F.gelu(self.fc(self.n2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Parameter(0.02 * torch.randn(T, D))
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, idx):
        x = self.tok(idx) + self.pos[: idx.shape[1]]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def lm_loss(model, seq):
    return F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())


def fit(model, opt, mults, steps, g, tag, warm=20):
    base = opt.param_groups[0]["lr"]
    for step in range(steps):
        opt.param_groups[0]["lr"] = base * min(1.0, (step + 1) / warm)
        loss = lm_loss(model, recurrences(48, mults, g))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"{tag} {step:4d} loss {loss.item():.4f}", flush=True)


def adapted(model):
    return [m for m in model.modules() if isinstance(m, AdaptedLinear)]


def lowrank_parameters(model):
    return [p for n, p in model.named_parameters() if n.endswith((".down", ".up"))]


g = torch.Generator().manual_seed(11)
model = Model()
fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3), [1], 180, g, "pretrain")

for p in model.parameters():
    p.requires_grad_(False)
for m in adapted(model):
    m.set_rank(4)
rank = 8 if len(adapted(model)) <= 16 else 4
for m in adapted(model):
    m.set_rank(rank)
tuner = torch.optim.AdamW(lowrank_parameters(model), lr=4e-3, weight_decay=0.0)
print("tuned parameters:", sum(p.numel() for p in model.parameters() if p.requires_grad))
fit(model, tuner, [2, 28], 200, g, "adapt")

with torch.no_grad():
    print("final adapt eval", lm_loss(model, recurrences(256, [2, 28], g)).item())
