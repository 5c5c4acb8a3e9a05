import argparse
import torch
from torch import nn
import torch.nn.functional as F


def spirals(n, gen, classes=5, noise=0.12):
    y = torch.randint(0, classes, (n,), generator=gen)
    r = torch.rand(n, generator=gen) * 2 + 0.2
    th = r * 2.2 + y * (2 * torch.pi / classes) + noise * torch.randn(n, generator=gen)
    lift = torch.stack([r * th.cos(), r * th.sin()], 1)
    return lift, y


class Fourier(nn.Module):
    def __init__(self, bands, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.register_buffer("B", torch.randn(2, bands, generator=g))

    def forward(self, x):
        p = x @ self.B
        return torch.cat([p.sin(), p.cos()], -1)


def mlp(width, depth, bands, seed, classes=5):
    layers = [Fourier(bands, seed), nn.Linear(2 * bands, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


class Distiller(nn.Module):
    def __init__(self, teacher, student, tau):
        super().__init__()
        self.teacher, self.student, self.tau = teacher, student, tau

    def forward(self, x):
        soft = F.softmax(self.teacher(x).detach() / self.tau, dim=-1)
        logq = F.log_softmax(self.student(x) / self.tau, dim=-1)
        return -(soft * logq).sum(-1).mean() * self.tau ** 2


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(-1) == y).float().mean().item()


def pretrain(net, x, y, steps):
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for i in range(steps):
        j = torch.randint(0, len(x), (256,))
        loss = F.cross_entropy(net(x[j]), y[j])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 100 == 0:
            print(f"teacher step {i} loss {loss.item():.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tau", type=float, default=2.0)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--steps", type=int, default=800)
    ap.add_argument("--seed", type=int, default=2)
    a = ap.parse_args()

    torch.manual_seed(a.seed)
    torch.set_flush_denormal(True)
    gen = torch.Generator().manual_seed(a.seed)
    x, y = spirals(4000, gen)
    xt, _ = spirals(4000, gen)
    xv, yv = spirals(2000, gen)

    teacher = mlp(256, 3, 32, seed=1)
    pretrain(teacher, x, y, 300)
    print(f"teacher val acc {accuracy(teacher, xv, yv):.4f}")

    pair = Distiller(teacher.eval(), mlp(48, 2, 16, seed=8), a.tau)
    opt = torch.optim.AdamW(pair.parameters(), lr=a.lr, weight_decay=1e-4)
    for i in range(a.steps):
        batch = xt[torch.randint(0, len(xt), (256,))]
        loss = pair(batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 75 == 0 or i == a.steps - 1:
            print(f"distil step {i} loss {loss.item():.4f}", flush=True)
    print(f"student val acc {accuracy(pair.student, xv, yv):.4f}")


if __name__ == "__main__":
    main()
