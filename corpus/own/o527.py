import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


def bars_and_stripes(n=4):
    out = set()
    for bits in itertools.product([0, 1], repeat=n):
        row = torch.tensor(bits).repeat_interleave(n)
        col = torch.tensor(bits).repeat(n)
        out.add(tuple(row.tolist()))
        out.add(tuple(col.tolist()))
    return torch.tensor(sorted(out)).float()


class RBM(nn.Module):
    def __init__(self, nv, nh, mean):
        super().__init__()
        self.W = nn.Parameter(0.1 * torch.randn(nv, nh))
        self.a = nn.Parameter(torch.logit(mean.clamp(0.05, 0.95)))
        self.b = nn.Parameter(torch.zeros(nh))

    def free_energy(self, v):
        return -(v @ self.a) - F.softplus(v @ self.W + self.b).sum(-1)

    @torch.no_grad()
    def gibbs(self, v, k):
        for _ in range(k):
            h = torch.bernoulli(torch.sigmoid(v @ self.W + self.b))
            v = torch.bernoulli(torch.sigmoid(h @ self.W.T + self.a))
        return v

    @torch.no_grad()
    def exact_nll(self, v, states):
        log_z = torch.logsumexp(-self.free_energy(states), 0)
        return (self.free_energy(v).mean() + log_z).item()


class Trainer:
    def __init__(self, rbm, data, chains=500, k=5, lr=0.02, steps=500):
        self.rbm, self.data, self.k, self.steps = rbm, data, k, steps
        self.particles = torch.bernoulli(torch.full((chains, data.shape[1]), 0.5))
        self.opt = torch.optim.Adam(rbm.parameters(), lr=lr, betas=(0.5, 0.99))
        self.sched = torch.optim.lr_scheduler.LinearLR(self.opt, 1.0, 0.05, total_iters=steps)

    def step(self):
        v = self.data[torch.randint(len(self.data), (250,))]
        self.particles = self.rbm.gibbs(self.particles, self.k)
        loss = self.rbm.free_energy(v).mean() - self.rbm.free_energy(self.particles).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sched.step()
        return loss.item()


def main():
    torch.manual_seed(15)
    patterns = bars_and_stripes()
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=16)))
    data = patterns[torch.randint(len(patterns), (5000,))]
    entropy = torch.tensor(float(len(patterns))).log().item()
    rbm = RBM(16, 32, data.mean(0))
    tr = Trainer(rbm, data)
    print(f"{len(patterns)} patterns, entropy of the data {entropy:.3f} nats")
    for s in range(tr.steps):
        if s % 50 == 0:
            nll = rbm.exact_nll(patterns, states)
            print(f"step {s:4d} exact nll {nll:.4f}", end="  ")
        d = tr.step()
        if s % 50 == 0:
            print(f"free-energy difference {d:+.4f}")
    print(f"step {tr.steps:4d} exact nll {rbm.exact_nll(patterns, states):.4f}")
    samples = rbm.gibbs(tr.particles, 50)
    valid = (samples[:, None] == patterns[None]).all(-1).any(-1).float().mean()
    print(f"share of chain samples that are exact patterns {valid:.3f} (random {len(patterns) / 2 ** 16:.5f})")


if __name__ == "__main__":
    main()
