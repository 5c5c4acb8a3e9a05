import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ReverseGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None


gen = torch.Generator().manual_seed(31)
CLS, SIG, NUIS = 6, 16, 8
protos = torch.randn(CLS, SIG, generator=gen)
device_shift = torch.randn(NUIS, generator=gen)
mix = torch.linalg.qr(torch.randn(SIG + NUIS, SIG + NUIS, generator=gen))[0]


def utterances(n):
    y = torch.randint(0, CLS, (n,), generator=gen)
    d = torch.randint(0, 2, (n,), generator=gen)
    s = protos[y] * torch.where(torch.rand(n, 1, generator=gen) < 0.5, 1.0, -1.0) + 0.6 * torch.randn(n, SIG, generator=gen)
    v = 1.2 * (2.0 * d[:, None] - 1) * device_shift + torch.randn(n, NUIS, generator=gen)
    return torch.cat([s, v], 1) @ mix, y, d


class InvariantNet(nn.Module):
    def __init__(self, dim=SIG + NUIS, h=96, f=32):
        super().__init__()
        self.feat = nn.Sequential(nn.Linear(dim, h), nn.ReLU(), nn.Linear(h, f), nn.LayerNorm(f))
        self.cls = nn.Linear(f, CLS)
        self.dev = nn.Sequential(nn.Linear(f, h), nn.ReLU(), nn.Linear(h, 1))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x, lam):
        f = self.feat(x)
        return self.cls(f).float(), self.dev(ReverseGrad.apply(f, lam)).float().squeeze(1)


@torch.no_grad()
def probe(net, x, d):
    """How well a ridge read-out finds the device in the features."""
    f = torch.cat([net.feat(x), torch.ones(len(x), 1)], 1).double()
    half = len(x) // 2
    t = 2.0 * d.double() - 1
    w = torch.linalg.solve(f[:half].T @ f[:half] + torch.eye(f.size(1)).double(), f[:half].T @ t[:half])
    return ((f[half:] @ w > 0) == (t[half:] > 0)).float().mean().item()


torch.manual_seed(6)
x, y, d = utterances(6000)
xe, ye, de = utterances(2000)
net = InvariantNet()
opt = torch.optim.SGD([{"params": net.feat.parameters(), "lr": 0.05},
                       {"params": net.cls.parameters(), "lr": 0.05},
                       {"params": net.dev.parameters(), "lr": 0.5}], momentum=0.0, weight_decay=1e-4)
STEPS = 600
for step in range(STEPS):
    lam = 0.1 * (2.0 / (1.0 + math.exp(-10 * max(0.0, step / STEPS - 0.15))) - 1.0)
    i = torch.randint(0, len(x), (128,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, dev = net(x[i], lam)
    task = F.cross_entropy(out, y[i])
    adv = F.binary_cross_entropy_with_logits(dev, d[i].float())
    loss = task + adv
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0 or step == STEPS - 1:
        net.eval()
        with torch.no_grad():
            acc = (net(xe, 0.0)[0].argmax(1) == ye).float().mean().item()
        print(f"step {step:3d} loss {loss.item():.4f} task {task.item():.4f} device {adv.item():.4f} "
              f"lambda {lam:.2f} test acc {acc:.3f} device probe {probe(net, xe, de):.3f}")
        net.train()
