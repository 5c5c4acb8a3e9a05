import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

DEPTH, DIM = 16, 64


class Highway(nn.Module):
    def __init__(self, dim, gate_bias):
        super().__init__()
        self.plain = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, gate_bias)

    def forward(self, x):
        g = torch.sigmoid(self.gate(x))
        return g * torch.tanh(self.plain(x)) + (1 - g) * x


class TabNet(nn.Module):
    def __init__(self, cat_sizes, n_num, classes):
        super().__init__()
        self.cats = nn.ModuleList([nn.Embedding(c, 8) for c in cat_sizes])
        self.inp = nn.Linear(8 * len(cat_sizes) + n_num, DIM)
        self.trunk = nn.Sequential(*[Highway(DIM, gate_bias=3.0) for _ in range(DEPTH)])
        self.head = nn.Linear(DIM, classes)

    def forward(self, c, n):
        e = torch.cat([emb(c[:, i]) for i, emb in enumerate(self.cats)] + [n], 1)
        return self.head(self.trunk(torch.tanh(self.inp(e))))


def table(n, rng):
    c = rng.integers(0, 6, (n, 4))
    x = rng.normal(size=(n, 6))
    score = np.stack([x[:, 0] + (c[:, 0] - 2.5), x[:, 1] * 1.5 - (c[:, 1] - 2.5),
                      x[:, 2] + x[:, 3] + (c[:, 2] == c[:, 3]) * 2, 1.2 * x[:, 4] - x[:, 5]], 1)
    return torch.tensor(c), torch.tensor(x, dtype=torch.float32), torch.tensor(score.argmax(1))


def main():
    torch.manual_seed(44)
    rng = np.random.default_rng(44)
    c, x, y = table(12000, rng)
    net = TabNet([6] * 4, 6, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    hist = []
    for step in range(300):
        rows = torch.randint(0, len(y), (64,))
        loss = F.cross_entropy(net(c[rows], x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        hist.append(loss.item())
        if step % 30 == 0 or step == 299:
            print(f"step {step:3d}  loss {np.mean(hist[-15:]):.4f}")


main()
