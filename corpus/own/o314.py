import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Setup:
    history: int = 48
    horizon: int = 12
    width: int = 64
    heads: int = 4
    layers: int = 2
    per_device: int = 16
    micro: int = 2
    base_lr: float = 3e-3
    steps: int = 140
    warm: int = 15


class Forecaster(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Linear(4, s.width)
        self.time = nn.Parameter(torch.randn(s.history // 4, s.width) * 0.02)
        layer = nn.TransformerEncoderLayer(s.width, s.heads, 2 * s.width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, s.layers, nn.LayerNorm(s.width), enable_nested_tensor=False)
        self.predict = nn.Linear(s.width * (s.history // 4), s.horizon)

    def forward(self, x):
        h = self.embed(x.unflatten(1, (-1, 4))) + self.time
        return self.predict(self.encoder(h).flatten(1))


def series(n, s):
    t = torch.arange(s.history + s.horizon).float()
    wave = 0
    for _ in range(2):
        period = torch.empty(n, 1).uniform_(8, 30)
        phase = torch.empty(n, 1).uniform_(0, 2 * math.pi)
        wave = wave + torch.empty(n, 1).uniform_(0.3, 1) * torch.sin(2 * math.pi * t / period + phase)
    wave = wave + 0.05 * torch.randn_like(wave)
    return wave[:, : s.history], wave[:, s.history:]


def main():
    s = Setup()
    torch.manual_seed(140)
    model = Forecaster(s)
    lr = s.base_lr * s.per_device * s.micro
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)

    def course(step):
        return min(1.0, (step + 1) / s.warm)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, course)
    for step in range(s.steps):
        optimizer.zero_grad()
        shown = 0.0
        for _ in range(s.micro):
            x, y = series(s.per_device, s)
            loss = nn.functional.mse_loss(model(x), y) / s.micro
            loss.backward()
            shown += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0 or step == s.steps - 1:
            print(f"step {step:3d} mse {shown:.4f} lr {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
