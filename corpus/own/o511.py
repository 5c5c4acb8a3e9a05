import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(19)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, g):
        (u,) = ctx.saved_tensors
        return g / (1 + 10 * u.abs()) ** 2


spike = Spike.apply
T, NIN, NHID, NOUT = 30, 40, 96, 4
templates = torch.rand(NOUT, NIN) * T


def batch(n):
    y = torch.randint(0, NOUT, (n,))
    times = (templates[y] + 1.5 * torch.randn(n, NIN)).round().clamp(0, T - 1).long()
    x = F.one_hot(times, T).float().transpose(1, 2)
    x = torch.maximum(x, (torch.rand_like(x) < 0.01).float())
    x = x * (torch.rand(n, 1, NIN) > 0.2)
    return x, y


class SNN(nn.Module):
    def __init__(self, beta=0.9):
        super().__init__()
        self.beta = beta
        self.w1 = nn.Parameter(torch.randn(NIN, NHID) * 0.3)
        self.v1 = nn.Parameter(torch.randn(NHID, NHID) * 0.03)
        self.w2 = nn.Parameter(torch.randn(NHID, NOUT) * 0.1)

    def forward(self, x):
        n = x.size(0)
        mem = torch.zeros(n, NHID)
        s = torch.zeros(n, NHID)
        out = torch.zeros(n, NOUT)
        peak, count = [], 0.0
        for t in range(x.size(1)):
            mem = self.beta * mem * (1 - s.detach()) + x[:, t] @ self.w1 + s @ self.v1
            s = spike(mem - 1.0)
            out = self.beta * out + s @ self.w2
            peak.append(out)
            count = count + s.mean()
        return torch.stack(peak, 1).amax(1), count / x.size(1)


model = SNN()
opt = torch.optim.Adamax(model.parameters(), lr=4e-3)
xv, yv = batch(400)
for it in range(1, 161):
    x, y = batch(64)
    logit, rate = model(x)
    ce = F.nll_loss(F.log_softmax(logit, 1), y)
    loss = ce + 5.0 * (rate - 0.1).relu() ** 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it == 1 or it % 10 == 0:
        with torch.no_grad():
            acc = (model(xv)[0].argmax(1) == yv).float().mean().item()
        print(f"iter {it:3d} loss {loss.item():.4f} ce {ce.item():.4f} rate {rate.item():.3f} val acc {acc:.3f}")
