import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

torch.set_num_threads(1)
torch.manual_seed(22)

COMPUTE = torch.float16
HOURS, PATCH = 32, 4


def readings(n):
    t = torch.linspace(0, 1, HOURS)
    kind = torch.randint(4, (n,))
    shift = torch.rand(n, 1) * 0.3
    curves = torch.stack([
        (t + shift).expand(n, -1),
        1.3 - t - shift * 0.5,
        0.2 + ((t * 4 + shift * 3) % 1.0),
        0.2 + torch.exp(-((t - 0.4 - shift) / 0.12) ** 2),
    ], 1)
    base = curves[torch.arange(n), kind]
    level = torch.exp(2.6 + 0.8 * torch.randn(n, 1))
    return level * (base + 0.05 * torch.randn(n, HOURS)).clamp_min(0), kind


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class MeterModel(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(PATCH, d), SquaredReLU(), nn.Linear(d, d), nn.LayerNorm(d))
        self.pos = nn.Parameter(torch.randn(HOURS // PATCH, d) * 0.3)
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        self.head = nn.Linear(d, 4)

    def forward(self, x):
        h = self.stem(x.unflatten(1, (-1, PATCH))) + self.pos
        b, t, d = h.shape
        q, k, v = self.qkv(self.n1(h)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1)
        h = h + self.out((w @ v).transpose(1, 2).reshape(b, t, d))
        h = h + self.down(F.gelu(self.up(self.n2(h))))
        return self.head(self.n3(h).mean(1))


model = MeterModel()
weights = dict(model.named_parameters())
opt = torch.optim.AdamW(weights.values(), lr=1e-3)
for step in range(150):
    x, y = readings(32)
    small = {name: w.to(COMPUTE) for name, w in weights.items()}
    logits = functional_call(model, small, (x.to(COMPUTE),))
    loss = F.cross_entropy(logits.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0 or step == 149:
        print(f"step {step:3d} loss {loss.item():.4f}")
