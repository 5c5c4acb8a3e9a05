import argparse
import numpy as np
import torch


class MyAdam:
    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8, wd=0.0):
        self.params = list(params)
        self.lr, self.betas, self.eps, self.wd = lr, betas, eps, wd
        self.t = 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        c1, c2 = 1 - b1 ** self.t, 1 - b2 ** self.t
        for p, m, v in zip(self.params, self.m, self.v):
            g = p.grad
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            if self.wd:
                p.mul_(1 - self.lr * self.wd)
            p.addcdiv_(m / c1, (v / c2).sqrt_().add_(self.eps), value=-self.lr)


def make_data(n, rng):
    age = rng.uniform(18, 90, n)
    region = rng.integers(0, 12, n)
    power = rng.gamma(3.0, 30.0, n)
    exposure = rng.uniform(0.05, 1.0, n)
    effect = np.linspace(-0.8, 0.8, 12)[np.random.default_rng(5).permutation(12)]
    log_rate = 1.5 + 1.2 * np.cos((age - 18) / 20) + effect[region] + 0.006 * (power - 90)
    y = rng.poisson(exposure * np.exp(log_rate))
    t = lambda a, d=torch.float32: torch.as_tensor(a, dtype=d)
    return t(age), t(region, torch.long), t(power), t(exposure), t(y), t(exposure * np.exp(log_rate))


class RateNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(12, 4)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, 64), torch.nn.Softplus(), torch.nn.Linear(64, 64), torch.nn.Softplus(), torch.nn.Linear(64, 1))
        torch.nn.init.zeros_(self.net[-1].weight)

    def forward(self, age, region, power, exposure):
        z = torch.cat([((age - 54) / 20)[:, None], ((power - 90) / 50)[:, None], self.emb(region)], 1)
        return self.net(z).squeeze(1) + exposure.log()


def poisson_nll(log_mu, y):
    return (log_mu.exp() - y * log_mu).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1000)
    ap.add_argument("--bs", type=int, default=512)
    ap.add_argument("--lr", type=float, default=2e-3)
    a = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    tr, va = make_data(30000, rng), make_data(5000, rng)
    model = RateNet()
    opt = MyAdam(model.parameters(), a.lr, wd=1e-3)
    run = None
    for it in range(a.steps):
        idx = torch.randint(0, len(tr[0]), (a.bs,))
        *x, y, _ = [c[idx] for c in tr]
        loss = poisson_nll(model(*x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run = loss.item() if run is None else 0.95 * run + 0.05 * loss.item()
        if it % 50 == 0 or it == a.steps - 1:
            with torch.no_grad():
                *x, y, mu = va
                pred = model(*x)
                v = poisson_nll(pred, y).item()
                oracle = poisson_nll(mu.log(), y).item()
            print(f"it {it:5d}  nll {run:8.4f}  val {v:8.4f}  (true model {oracle:.4f})")


if __name__ == "__main__":
    main()
