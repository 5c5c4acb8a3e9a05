import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
torch.set_num_threads(1)


class LSQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step, lo, hi):
        q = x / step
        ctx.save_for_backward(q, step)
        ctx.b = (lo, hi)
        return q.round().clamp(lo, hi) * step

    @staticmethod
    def backward(ctx, g):
        q, step = ctx.saved_tensors
        lo, hi = ctx.b
        inside = (q >= lo) & (q <= hi)
        ds = torch.where(q < lo, torch.full_like(q, lo), torch.where(q > hi, torch.full_like(q, hi), q.round() - q))
        scale = 1.0 / (q.numel() * hi) ** 0.5
        return g * inside, (g * ds).sum().view_as(step) * scale, None, None


class Quant(nn.Module):
    def __init__(self, bits, signed):
        super().__init__()
        self.lo, self.hi = (-2 ** (bits - 1), 2 ** (bits - 1) - 1) if signed else (0, 2 ** bits - 1)
        self.step = nn.Parameter(torch.ones(()))
        self.on = False

    def start(self, x):
        self.step.data.fill_(2 * x.abs().mean().item() / self.hi ** 0.5)
        self.on = True

    def forward(self, x):
        return LSQ.apply(x, self.step.abs() + 1e-6, self.lo, self.hi) if self.on else x


class QConv(nn.Conv2d):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.qw, self.qa = Quant(4, True), Quant(4, False)

    def forward(self, x):
        self.seen = x.detach()
        return self._conv_forward(self.qa(x), self.qw(self.weight), self.bias)


def digits(n, gen):
    y = torch.randint(0, 6, (n,), generator=gen)
    img = torch.zeros(n, 1, 12, 12)
    u = torch.arange(12.0)
    a = y.float() * 3.14159 / 6
    off = torch.rand(n, generator=gen) * 4 - 2
    xx, yy = u[None, None, :] - 5.5, u[None, :, None] - 5.5
    d = (xx * a.sin()[:, None, None] - yy * a.cos()[:, None, None] - off[:, None, None]).abs()
    img[:, 0] = (-d ** 2 / 1.2).exp()
    img = img * (0.6 + 0.4 * torch.rand(n, 1, 1, 1, generator=gen))
    return (img + 0.35 * torch.randn(img.shape, generator=gen)).clamp(0, 1.5), y


gen = torch.Generator().manual_seed(1)
xv, yv = digits(800, gen)
net = nn.Sequential(
    QConv(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
    QConv(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
    QConv(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Flatten(), nn.Linear(24 * 9, 6))


def accuracy():
    net.eval()
    with torch.no_grad():
        a = (net(xv).argmax(1) == yv).float().mean().item()
    net.train()
    return a


def train(steps, opt, tag):
    for i in range(steps):
        x, y = digits(64, gen)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 30 == 0 or i == steps - 1:
            print(f"{tag} {i:3d} loss {loss.item():.4f}")


weights = [p for n, p in net.named_parameters() if not n.endswith("step")]
train(120, torch.optim.SGD(weights, lr=0.05, momentum=0.9), "float")
print(f"float accuracy {accuracy():.3f}")
convs = [m for m in net if isinstance(m, QConv)]
for m in convs:
    m.qw.start(m.weight)
    m.qa.start(m.seen)
print(f"quantised, before tuning {accuracy():.3f}")
steps = [m.step for m in net.modules() if isinstance(m, Quant)]
opt = torch.optim.SGD([{"params": weights, "lr": 0.01}, {"params": steps, "lr": 0.01, "weight_decay": 0.0}], momentum=0.9)
train(150, opt, "qat")
print(f"4-bit accuracy {accuracy():.3f}; distinct weight levels",
      [m.qw(m.weight).unique().numel() for m in convs])
