import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
torch.set_default_dtype(torch.float64)


def positive(raw):
    return F.softplus(raw) + 1e-6


def inv_softplus(v):
    return math.log(math.expm1(v))


class GP(nn.Module):

    def __init__(self, dim):
        super().__init__()
        self.raw_len = nn.Parameter(torch.full((dim,), inv_softplus(1.0)))
        self.raw_sf = nn.Parameter(torch.tensor(inv_softplus(1.0)))
        self.raw_per_len = nn.Parameter(torch.tensor(inv_softplus(1.0)))
        self.raw_period = nn.Parameter(torch.tensor(inv_softplus(1.15)))
        self.raw_per_sf = nn.Parameter(torch.tensor(inv_softplus(0.5)))
        self.raw_noise = nn.Parameter(torch.tensor(inv_softplus(0.5)))
        self.mean = nn.Parameter(torch.zeros(()))

    def kernel(self, a, b):
        length = positive(self.raw_len)
        d2 = ((a / length)[:, None, :] - (b / length)[None, :, :]).square().sum(-1)
        rbf = positive(self.raw_sf).square() * torch.exp(-0.5 * d2)
        diff = a[:, None, 0] - b[None, :, 0]
        s = torch.sin(math.pi * diff / positive(self.raw_period)) / positive(self.raw_per_len)
        per = positive(self.raw_per_sf).square() * torch.exp(-2.0 * s.square())
        return rbf + per

    def _chol(self, x):
        k = self.kernel(x, x)
        return torch.linalg.cholesky(k + (positive(self.raw_noise).square() + 1e-8) * torch.eye(len(x)))

    def neg_log_marginal(self, x, y):
        chol = self._chol(x)
        r = (y - self.mean).unsqueeze(1)
        z = torch.linalg.solve_triangular(chol, r, upper=False)
        return 0.5 * z.square().sum() + chol.diagonal().log().sum() + 0.5 * len(x) * math.log(2 * math.pi)

    @torch.no_grad()
    def predict(self, x, y, xs):
        chol = self._chol(x)
        ks = self.kernel(x, xs)
        alpha = torch.cholesky_solve((y - self.mean).unsqueeze(1), chol)
        v = torch.linalg.solve_triangular(chol, ks, upper=False)
        prior = positive(self.raw_sf).square() + positive(self.raw_per_sf).square()
        var = prior - v.square().sum(0) + positive(self.raw_noise).square()
        return self.mean + (ks.T @ alpha).squeeze(1), var


def truth(x):
    return 0.8 * torch.sin(2 * math.pi * x[:, 0]) + torch.sin(0.8 * x[:, 1]) * x[:, 0] * 0.5 + 1.5


x = torch.rand(420, 3) * torch.tensor([4.0, 6.0, 4.0])
y = truth(x) + 0.15 * torch.randn(len(x))
xtr, ytr, xte, yte = x[:220], y[:220], x[220:], y[220:]

gp = GP(3)
opt = torch.optim.Adam(gp.parameters(), lr=0.05)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, [150, 210], gamma=0.3)
for step in range(250):
    opt.zero_grad()
    loss = gp.neg_log_marginal(xtr, ytr) / len(xtr)
    loss.backward()
    opt.step()
    sched.step()
    if step % 25 == 0 or step == 249:
        print(f"step {step:3d}  -log p(y|X)/n = {loss.item():8.4f}  noise {positive(gp.raw_noise).item():.3f}  "
              f"period {positive(gp.raw_period).item():.3f}  lengths {[round(v, 2) for v in positive(gp.raw_len).tolist()]}")

m, v = gp.predict(xtr, ytr, xte)
rmse = (m - yte).square().mean().sqrt()
nlpd = 0.5 * (torch.log(2 * math.pi * v) + (yte - m).square() / v).mean()
cover = ((yte - m).abs() < 1.96 * v.sqrt()).double().mean()
print(f"test rmse {rmse:.3f} (noise 0.15, spread {yte.std():.3f})  nlpd {nlpd:.3f}  95% coverage {cover:.3f}")
