import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
torch.set_num_threads(1)
K, T = 5, 40
base = torch.randn(K, 2, T).cumsum(2)
base = 3.0 + 2.5 * (base - base.mean(2, keepdim=True)) / base.std(2, keepdim=True)


def draw(n):
    y = torch.randint(0, K, (n,))
    x = base[y] * (0.7 + 0.6 * torch.rand(n, 1, 1)) + 2.0 * torch.randn(n, 2, T)
    return x, y


def jitter(x):
    return x * (0.9 + 0.2 * torch.rand(len(x), 1, 1)) + 0.6 * torch.randn_like(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv1d(2, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(24, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(),
            nn.Linear(32 * (T // 4), K))

    def forward(self, x):
        return self.f(x)


@torch.no_grad()
def ema_update(student, teacher, m):
    for ps, pt in zip(student.parameters(), teacher.parameters()):
        pt.mul_(m).add_(ps, alpha=1 - m)


@torch.no_grad()
def accuracy(net, x, y):
    mode = net.training
    net.eval()
    a = (net(x).argmax(1) == y).float().mean().item()
    net.train(mode)
    return a


xl, yl = draw(60)
xu, _ = draw(3000)
xt, yt = draw(800)
student = Net()
teacher = copy.deepcopy(student).requires_grad_(False).eval()
opt = torch.optim.Adam(student.parameters(), lr=2e-3)
STEPS = 250
for step in range(STEPS):
    i, j = torch.randint(0, len(xl), (32,)), torch.randint(0, len(xu), (64,))
    xb = torch.cat([jitter(xl[i]), jitter(xu[j])])
    out = student(xb)
    with torch.no_grad():
        soft = teacher(jitter(torch.cat([xl[i], xu[j]]))).softmax(1)
    sup = F.cross_entropy(out[:32], yl[i])
    w = min(1.0, step / 80) ** 2 * 6.0
    cons = (out.softmax(1) - soft).pow(2).sum(1).mean()
    loss = sup + w * cons
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema_update(student, teacher, min(0.97, 1 - 1 / (step + 2)))
    if step % 25 == 0 or step == STEPS - 1:
        print(f"step {step:3d} sup {sup.item():.3f} cons {cons.item():.4f} "
              f"student {accuracy(student, xt, yt):.3f} teacher {accuracy(teacher, xt, yt):.3f}")
