import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize

torch.manual_seed(12)
V, N, D, RANK = 26, 8, 64, 8
TASKS = {"rotate": lambda x: x.roll(1, 1), "reverse": lambda x: x.flip(1)}


class Delta(nn.Module):
    def __init__(self, weight):
        super().__init__()
        out, inp = weight.shape
        self.register_buffer("down", torch.randn(RANK, inp) / inp ** 0.5)
        self.up = nn.Parameter(torch.zeros(out, RANK))

    def forward(self, weight):
        return weight + 2.0 * self.up @ self.down


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 3 * D), nn.Linear(3 * D, D)
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        z = self.n1(x)
        q, k, v = (f(z).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(N, D))
        self.layers = nn.Sequential(Layer(), Layer())
        self.head = nn.Linear(D, V)

    def forward(self, x):
        return self.head(self.layers(self.tok(x) + self.pos))


def run(model, lr, steps, task):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.Adam(params, lr=lr)
    for s in range(steps):
        x = torch.randint(0, V, (48, N))
        loss = F.cross_entropy(model(x).flatten(0, 1), TASKS[task](x).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 25 == 0:
            print(f"{task} {s} {loss.item():.4f}")
    return sum(p.numel() for p in params)


lm = Backbone()
full = run(lm, 2e-3, 200, "rotate")
lm.requires_grad_(False)
for layer in lm.layers:
    for linear in (layer.q, layer.k, layer.v, layer.o):
        parametrize.register_parametrization(linear, "weight", Delta(linear.weight))
few = run(lm, 1e-2, 250, "reverse")
lm.eval()
with torch.no_grad():
    x = torch.randint(0, V, (500, N))
    print(f"trained {few} numbers after {full}")
    print(f"held-out reverse accuracy {(lm(x).argmax(-1) == x.flip(1)).float().mean().item():.4f}")
