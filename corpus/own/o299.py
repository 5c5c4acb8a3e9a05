import argparse
import torch
import torch.nn as nn


def build_args():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--depth", type=int, default=8)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch", type=int, default=128)
    return p.parse_args([])


class ResidualCell(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)
        self.act = act

    def forward(self, x):
        y = self.fc2(self.act(self.fc1(self.norm(x))))
        return self.act(x + y)


class Tower(nn.Module):
    def __init__(self, a):
        super().__init__()
        act = nn.Sigmoid()
        self.user = nn.Embedding(40, a.width // 2)
        self.item = nn.Embedding(50, a.width // 2)
        self.cells = nn.Sequential(*[ResidualCell(a.width, act) for _ in range(a.depth)])
        self.rate = nn.Linear(a.width, 5)

    def forward(self, u, i):
        return self.rate(self.cells(torch.cat((self.user(u), self.item(i)), -1)))


def ratings():
    g = torch.Generator().manual_seed(3)
    a = torch.randn(40, 2, generator=g)
    b = torch.randn(50, 2, generator=g)
    score = a @ b.t()
    edges = torch.quantile(score.flatten(), torch.tensor([0.2, 0.4, 0.6, 0.8]))
    return torch.bucketize(score, edges)


def main():
    a = build_args()
    torch.manual_seed(3)
    table = ratings()
    net = Tower(a)
    opt = torch.optim.AdamW(net.parameters(), lr=a.lr, weight_decay=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(a.steps):
        u, i = torch.randint(40, (a.batch,)), torch.randint(50, (a.batch,))
        out = net(u, i)
        loss = loss_fn(out, table[u, i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == a.steps - 1:
            print(f"{step:5d} loss {loss.item():.4f} acc {(out.argmax(-1) == table[u, i]).float().mean():.3f}")


if __name__ == "__main__":
    main()
