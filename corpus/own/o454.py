import torch
from torch import nn

METRE = 1e-4


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=3e-4, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Link:
    """Mimics an all-reduce: every worker sends a compressed flat bucket, the mean comes back."""

    def __init__(self, params, wire=torch.float16):
        self.params, self.wire = list(params), wire

    def reduce(self, buckets):
        sent = [b.to(self.wire) for b in buckets]
        mean = torch.stack([s.float() for s in sent]).mean(0)
        at = 0
        for p in self.params:
            p.grad = mean[at:at + p.numel()].view_as(p).clone()
            at += p.numel()

    def bucket(self, loss):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.params)])


def simulate(n, gen):
    """load, position, stiffness, width -> deflection at 8 stations"""
    q = torch.rand(n, 4, generator=gen) * 2 - 1
    s = torch.linspace(0, 1, 8)
    load, where, stiff, width = q.T.unsqueeze(-1)
    y = (1.5 + load) * torch.sin(torch.pi * s) * torch.exp(-2 * (s - 0.5 - 0.3 * where) ** 2)
    return q, METRE * y / (1.3 + stiff) / (1.5 + 0.5 * width)


class Surrogate(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                               nn.Linear(width, 8))

    def forward(self, q):
        return METRE * self.f(q)


def main():
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(6)
    q, y = simulate(8192, gen)
    qv, yv = simulate(1024, gen)
    net = Surrogate()
    opt = Lion(net.parameters())
    link = Link(net.parameters())
    workers = 2
    for step in range(1200):
        losses = []
        grads = []
        for _ in range(workers):
            i = torch.randint(0, len(q), (128,))
            loss = (net(q[i]) - y[i]).square().mean()
            grads.append(link.bucket(loss))
            losses.append(loss.item())
        link.reduce(grads)
        opt.step()
        if step == 800:
            opt.param_groups[0]["lr"] *= 0.3
        if step % 60 == 0:
            print(f"step {step} loss {sum(losses) / workers:.4e}", flush=True)
    with torch.no_grad():
        rel = (net(qv) - yv).square().mean() / (yv - yv.mean(0)).square().mean()
    print(f"held-out unexplained variance {rel.item():.4f}")


if __name__ == "__main__":
    main()
