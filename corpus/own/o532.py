import torch
import torch.nn as nn


def true_field(y):
    x, v = y.unbind(-1)
    return torch.stack([v, 0.7 * (1 - x ** 2) * v - x], -1)


def rk4(field, y0, dt, n):
    ys, y = [y0], y0
    for _ in range(n):
        k1 = field(y)
        k2 = field(y + 0.5 * dt * k1)
        k3 = field(y + 0.5 * dt * k2)
        k4 = field(y + dt * k3)
        y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        ys.append(y)
    return torch.stack(ys)


class Field(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))
        nn.init.normal_(self.net[-1].weight, std=0.01)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, y):
        return self.net(y)


class Experiment:
    DT, LENGTH, WINDOW, NOISE = 0.1, 80, 8, 0.02

    def __init__(self, seed=20):
        torch.manual_seed(seed)
        starts = torch.rand(60, 2) * 4 - 2
        with torch.no_grad():
            fine = rk4(true_field, starts, self.DT / 5, self.LENGTH * 5)[::5]
        self.train = fine[:, :50] + self.NOISE * torch.randn(self.LENGTH + 1, 50, 2)
        self.test = fine[:, 50:]
        self.field = Field()
        self.opt = torch.optim.Adam(self.field.parameters(), lr=1e-2)

    def batch(self, size=128):
        tr = torch.randint(self.train.shape[1], (size,))
        t0 = torch.randint(self.LENGTH - self.WINDOW + 1, (size,))
        rows = t0[None, :] + torch.arange(self.WINDOW + 1)[:, None]
        return self.train[rows, tr[None, :]]

    @torch.no_grad()
    def rollout_error(self):
        pred = rk4(self.field, self.test[0], self.DT, self.LENGTH)
        return (pred - self.test).square().mean().sqrt().item()

    def run(self, steps=240):
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps, eta_min=5e-5)
        print(f"spread of the test states {self.test.std().item():.3f}, rollout rmse before {self.rollout_error():.3f}")
        for k in range(steps):
            y = self.batch()
            pred = rk4(self.field, y[0], self.DT, self.WINDOW)
            loss = (pred[1:] - y[1:]).square().mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.field.parameters(), 1.0)
            self.opt.step()
            sched.step()
            if k % 24 == 0 or k == steps - 1:
                print(f"step {k:4d} loss {loss.item():.5f} (noise floor about {2 * self.NOISE ** 2:.5f}) "
                      f"held-out rollout rmse {self.rollout_error():.3f}")


if __name__ == "__main__":
    Experiment().run()
