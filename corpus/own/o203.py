import math
import torch
from torch import nn

torch.manual_seed(11)


def series(n, length, g):
    t = torch.arange(length, dtype=torch.float32)
    f = 0.05 + 0.2 * torch.rand(n, 2, 1, generator=g)
    ph = 2 * math.pi * torch.rand(n, 2, 1, generator=g)
    y = torch.sin(2 * math.pi * f[:, :1] * t + ph[:, :1]) + 0.5 * torch.sin(2 * math.pi * f[:, 1:] * t + ph[:, 1:])
    y = y.squeeze(1) + 0.05 * torch.randn(n, length, generator=g)
    hit = torch.rand(n, generator=g) < 0.03
    y[hit] = y[hit] * 6
    return y


class PatchForecaster(nn.Module):
    def __init__(self, context=64, patch=8, horizon=8, d=64, depth=2):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch, d)
        self.place = nn.Parameter(0.02 * torch.randn(context // patch, d))
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.skip = nn.Linear(context, horizon)
        self.head = nn.Linear(d, horizon)

    def forward(self, y):
        h = self.embed(y.unfold(1, self.patch, self.patch)) + self.place
        return self.head(self.encoder(h)[:, -1]) + self.skip(y)


g = torch.Generator().manual_seed(5)
model = PatchForecaster()
model.place.requires_grad_(False)
trainable = filter(lambda p: p.requires_grad, model.parameters())
optimizer = torch.optim.SGD(trainable, lr=0.02, momentum=0.9, nesterov=True)
mse = nn.MSELoss()
recent = []
for step in range(260):
    y = series(32, 72, g)
    loss = mse(model(y[:, :64]), y[:, 64:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(trainable, max_norm=0.5)
    optimizer.step()
    recent.append(loss.item())
    if step == 0 or (step + 1) % 20 == 0:
        tail = sorted(recent[-20:])
        print(f"{step + 1:4d}  mse {loss.item():.4f}  median of last {len(tail)} {tail[len(tail) // 2]:.4f}")
