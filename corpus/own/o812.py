import math
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(21)
torch.set_num_threads(1)
V, T = 23, 20


def stream(n, add, mul, gen):
    x = torch.empty(n, T + 1, dtype=torch.long)
    x[:, :2] = torch.randint(0, V, (n, 2), generator=gen)
    for i in range(2, T + 1):
        x[:, i] = (x[:, i - 1] + mul * x[:, i - 2] + add) % V
    noise = torch.rand(n, T + 1, generator=gen) < 0.02
    return torch.where(noise, torch.randint(0, V, x.shape, generator=gen), x)


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.s = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.a.T @ self.b.T) * self.s


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        B, N, D = x.shape
        y = self.ln1(x)
        q, k, v = (f(y).view(B, N, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, N, D))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class LM(nn.Module):
    def __init__(self, d=48, h=4, n=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(T, d)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(n))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, V)

    def forward(self, x):
        h = self.emb(x) + self.pos.weight[: x.size(1)]
        for l in self.layers:
            h = l(h)
        return self.head(self.ln(h))


def fit(model, params, rule, steps, lr, tag, seed):
    gen = torch.Generator().manual_seed(seed)
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for i in range(steps):
        x = stream(40, *rule, gen)
        loss = F.cross_entropy(model(x[:, :-1])[:, 1:].flatten(0, 1), x[:, 2:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0 or i == steps - 1:
            print(f"[{tag}] {i:4d} loss {loss.item():.4f}")


@torch.no_grad()
def acc(model, rule):
    x = stream(400, *rule, torch.Generator().manual_seed(99))
    return (model(x[:, :-1])[:, 1:].argmax(-1) == x[:, 2:]).float().mean().item()


model = LM()
RULE_A, RULE_B = (0, 1), (5, 1)
fit(model, model.parameters(), RULE_A, 260, 3e-3, "pretrain", 1)
print(f"pretrained: acc on A {acc(model, RULE_A):.3f}, on B {acc(model, RULE_B):.3f}")

model.requires_grad_(False)
for l in model.layers:
    for n in ("q", "v", "o", "up", "down"):
        setattr(l, n, LowRank(getattr(l, n)))
trainable = [p for p in model.parameters() if p.requires_grad]
print("trainable %d of %d" % (sum(p.numel() for p in trainable), sum(p.numel() for p in model.parameters())))
fit(model, trainable, RULE_B, 160, 5e-3, "adapt", 2)
print(f"adapted: acc on B {acc(model, RULE_B):.3f} (A now {acc(model, RULE_A):.3f})")
for l in model.layers:
    for n in ("q", "v", "o", "up", "down"):
        m = getattr(l, n)
        m.base.weight.add_(m.s * m.b.detach() @ m.a.detach())
        setattr(l, n, m.base)
print(f"merged: acc on B {acc(model, RULE_B):.3f}")
