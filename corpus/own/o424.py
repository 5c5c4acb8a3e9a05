import torch
from torch import nn


def moons(n):
    t = torch.pi * torch.rand(n)
    up = torch.rand(n) < 0.5
    x = torch.where(up, t.cos(), 1 - t.cos()) - 0.5
    y = torch.where(up, t.sin(), 0.5 - t.sin()) - 0.25
    return torch.stack([x, y], 1) + 0.05 * torch.randn(n, 2)


def net(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def sliced_distance(a, b, k=64):
    d = torch.nn.functional.normalize(torch.randn(2, k, generator=torch.Generator().manual_seed(0)), dim=0)
    return ((a @ d).sort(0).values - (b @ d).sort(0).values).abs().mean().item()


class WGAN:
    def __init__(self, z=4, lr=1e-3, bound=0.1):
        self.z, self.bound = z, bound
        self.G, self.D = net(z, 2), net(2, 1)
        self.opt_g = torch.optim.RMSprop(self.G.parameters(), lr=lr)
        self.opt_d = torch.optim.RMSprop(self.D.parameters(), lr=lr)

    def fake(self, n):
        return self.G(torch.randn(n, self.z))

    def critic_step(self, n):
        loss = self.D(self.fake(n).detach()).mean() - self.D(moons(n)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        with torch.no_grad():
            for p in self.D.parameters():
                p.clamp_(-self.bound, self.bound)
        return loss.item()

    def generator_step(self, n):
        loss = -self.D(self.fake(n)).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss.item()


def main(rounds=420, n=128, inner=3):
    torch.manual_seed(10)
    gan = WGAN()
    with torch.no_grad():
        print(f"sliced distance at start {sliced_distance(gan.fake(2000), moons(2000)):.4f}")
    for r in range(rounds):
        c = [gan.critic_step(n) for _ in range(inner)][-1]
        g = gan.generator_step(n)
        if r % 30 == 0 or r == rounds - 1:
            with torch.no_grad():
                sw = sliced_distance(gan.fake(2000), moons(2000))
            print(f"round {r} critic loss {c:.4f} gen loss {g:.4f} sliced {sw:.4f}", flush=True)


if __name__ == "__main__":
    main()
