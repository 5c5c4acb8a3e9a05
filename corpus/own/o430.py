import numpy as np
import torch
import torch.nn as nn

USERS, ITEMS, RANK, CONTENT = 300, 200, 6, 24


def world(rng):
    u, v = rng.standard_normal((USERS, RANK)), rng.standard_normal((ITEMS, RANK))
    content = np.tanh(v @ rng.standard_normal((RANK, CONTENT))) + 0.3 * rng.standard_normal((ITEMS, CONTENT))
    return u, v, content.astype("float32")


def ratings(n, u, v, rng):
    i, j = rng.integers(0, USERS, n), rng.integers(0, ITEMS, n)
    r = (u[i] * v[j]).sum(1) / RANK ** 0.5 + 0.2 * rng.standard_normal(n)
    return torch.from_numpy(i), torch.from_numpy(j), torch.tensor(r, dtype=torch.float32)


class Hybrid(nn.Module):
    def __init__(self, content, d=24):
        super().__init__()
        self.user = nn.Embedding(USERS, d, sparse=True)
        self.item = nn.Embedding(ITEMS, d, sparse=True)
        self.content = nn.Embedding.from_pretrained(torch.from_numpy(content), freeze=True)
        self.proj = nn.Linear(CONTENT, d)
        self.bias = nn.Linear(2 * d, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, i, j):
        a = self.user(i)
        b = self.item(j) + self.proj(self.content(j))
        return (a * b).sum(-1) + self.bias(torch.cat([a, b], -1)).squeeze(-1)


def main(steps=1000, bs=256):
    torch.manual_seed(16)
    rng = np.random.default_rng(16)
    u, v, content = world(rng)
    I, J, R = ratings(24000, u, v, rng)
    vi, vj, vr = ratings(3000, u, v, rng)
    net = Hybrid(content)
    tables = [net.user.weight, net.item.weight]
    dense = [*net.proj.parameters(), *net.bias.parameters()]
    opts = [torch.optim.SparseAdam(tables, lr=1e-2), torch.optim.AdamW(dense, lr=2e-3)]
    for step in range(steps):
        k = torch.randint(0, len(I), (bs,))
        loss = (net(I[k], J[k]) - R[k]).square().mean()
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step} mse {loss.item():.4f}", flush=True)
    with torch.no_grad():
        mse = (net(vi, vj) - vr).square().mean().item()
    print(f"held-out rmse {mse ** 0.5:.4f}, rating std {vr.std().item():.4f}")


if __name__ == "__main__":
    main()
