import numpy as np
import torch
from torch import nn, optim

torch.set_num_threads(1)
torch.manual_seed(2024)
gen = np.random.default_rng(2024)

N_TOK, SEQ, MASK_ID = 40, 32, 40


templates = torch.from_numpy(gen.integers(0, N_TOK, (10, SEQ)))


def sample(batch):
    clean = templates[torch.randint(len(templates), (batch,))]
    noise = torch.rand(batch, SEQ) < 0.15
    return torch.where(noise, torch.randint(N_TOK, (batch, SEQ)), clean)


class Norm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))
        self.b = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        mu = x.mean(0, keepdim=True)
        var = x.var(0, keepdim=True, unbiased=False)
        return (x - mu) / torch.sqrt(var + self.eps) * self.g + self.b


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_a = Norm(dim)
        self.lin1 = nn.Linear(dim, 4 * dim)
        self.lin2 = nn.Linear(4 * dim, dim)
        self.norm_b = Norm(dim)

    def forward(self, x):
        z = self.norm_a(x)
        x = x + self.mha(z, z, z, need_weights=False)[0]
        return x + self.lin2(torch.relu(self.lin1(self.norm_b(x))))


class MaskedModel(nn.Module):
    def __init__(self, dim=48, heads=4, depth=3):
        super().__init__()
        self.tok = nn.Embedding(N_TOK + 1, dim)
        self.pos = nn.Parameter(torch.randn(SEQ, dim) * 0.5)
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(depth)])
        self.norm = Norm(dim)
        self.proj = nn.Linear(dim, N_TOK)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.proj(self.norm(h))


def masked(batch):
    ids = sample(batch)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row in mask:
        row[torch.randperm(SEQ)[:5]] = True
    return ids.masked_fill(mask, MASK_ID), ids, mask


net = MaskedModel()
opt = optim.Adam(net.parameters(), lr=2e-3)
for step in range(1, 221):
    for g in opt.param_groups:
        g["lr"] = 2e-3 * min(1, step / 40)
    x, y, mask = masked(12)
    logits = net(x)
    loss = nn.functional.cross_entropy(logits[mask], y[mask])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step == 1 or step % 20 == 0:
        acc = (logits[mask].argmax(-1) == y[mask]).float().mean()
        print("step=%d loss=%.4f acc=%.3f" % (step, loss.item(), acc.item()))
