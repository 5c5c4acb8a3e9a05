import torch
import torch.nn as nn
import torch.nn.functional as F

CHANNELS, STEPS_T, CLASSES = 24, 20, 4


class Spike(torch.autograd.Function):
    sharpness = 5.0

    @staticmethod
    def forward(ctx, membrane):
        ctx.save_for_backward(membrane)
        return (membrane > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        membrane, = ctx.saved_tensors
        return grad_output / (1 + Spike.sharpness * membrane.abs()) ** 2


class LIF(nn.Module):
    def __init__(self, n_in, n_out, recurrent=False):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)
        self.rec = nn.Linear(n_out, n_out, bias=False) if recurrent else None
        self.leak = nn.Parameter(torch.full((n_out,), 2.0))
        nn.init.normal_(self.fc.weight, std=2.0 / n_in ** 0.5)
        if recurrent:
            nn.init.normal_(self.rec.weight, std=0.3 / n_out ** 0.5)

    def forward(self, spikes):
        current = self.fc(spikes)
        v = torch.zeros_like(current[:, 0])
        s = torch.zeros_like(v)
        beta = torch.sigmoid(self.leak)
        out = []
        for t in range(spikes.shape[1]):
            drive = current[:, t] + (self.rec(s) if self.rec is not None else 0)
            v = beta * v * (1 - s.detach()) + drive
            s = Spike.apply(v - 1.0)
            out.append(s)
        return torch.stack(out, 1)


class Readout(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)

    def forward(self, spikes):
        current = self.fc(spikes)
        v, best = torch.zeros_like(current[:, 0]), None
        for t in range(current.shape[1]):
            v = 0.9 * v + current[:, t]
            best = v if best is None else torch.maximum(best, v)
        return best


class SpikingNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.l1 = LIF(CHANNELS, hidden, recurrent=True)
        self.l2 = LIF(hidden, hidden)
        self.readout = Readout(hidden, CLASSES)

    def forward(self, x):
        a = self.l1(x)
        b = self.l2(a)
        return self.readout(b), a.mean() + b.mean()


class SweepSensor:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def draw(self, n):
        y = torch.randint(0, CLASSES, (n,), generator=self.g)
        t = torch.arange(STEPS_T).float()
        start = torch.rand(n, 1, generator=self.g) * 4
        up = start + t * (CHANNELS - 5) / STEPS_T
        down = CHANNELS - 1 - up
        bounce = torch.where(t < STEPS_T / 2, 2 * up - start, 2 * (CHANNELS - 5) - 2 * up + 3 * start)
        wobble = CHANNELS / 2 + 6 * torch.sin(0.9 * t + start)
        path = torch.stack([up, down, bounce, wobble], 1)[torch.arange(n), y]
        rate = torch.exp(-0.5 * ((torch.arange(CHANNELS) - path.unsqueeze(-1)) / 1.2) ** 2)
        p = 0.04 + 0.85 * rate
        return (torch.rand(p.shape, generator=self.g) < p).float(), y


torch.manual_seed(31)
stream, test = SweepSensor(1), SweepSensor(2).draw(300)
net = SpikingNet()
opt = torch.optim.Adamax(net.parameters(), lr=4e-3)
for step in range(251):
    x, y = stream.draw(32)
    logits, activity = net(x)
    loss = F.cross_entropy(logits, y) + 0.02 * activity
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        with torch.no_grad():
            logits, activity = net(test[0])
            acc = (logits.argmax(1) == test[1]).float().mean()
        print(f"step {step:4d} loss {loss.item():.4f} test acc {acc:.3f} firing {activity.item() / 2:.3f}", flush=True)
