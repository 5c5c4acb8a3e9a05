from dataclasses import dataclass
import math
import torch
from torch import nn


@dataclass
class TrainConfig:
    history: int = 48
    horizon: int = 12
    stations: int = 6
    d_model: int = 48
    micro_batch: int = 8
    accumulate: int = 8
    updates: int = 120
    lr: float = 0.08
    momentum: float = 0.9
    seed: int = 4


def simulate_weather(hours, stations, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()
    phase = torch.rand(stations, generator=g)
    daily = torch.sin(2 * math.pi * (t[:, None] / 24 + 0.2 * phase))
    front = torch.zeros(hours)
    v = torch.zeros(())
    for i in range(1, hours):
        v = 0.97 * v - 0.01 * front[i - 1] + 0.06 * torch.randn((), generator=g)
        front[i] = 0.995 * front[i - 1] + v
    front = front / front.std()
    cols = [torch.roll(front, 3 * s) for s in range(stations)]
    temp = 4 * daily + 3 * torch.stack(cols, 1) + 0.4 * torch.randn(hours, stations, generator=g)
    return temp


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.inp = nn.Linear(cfg.stations, cfg.d_model)
        self.pos = nn.Parameter(torch.randn(cfg.history, cfg.d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(cfg.d_model, 4, 2 * cfg.d_model, 0.0, "gelu",
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(cfg.d_model),
                                             enable_nested_tensor=False)
        self.head = nn.Linear(cfg.d_model, cfg.horizon * cfg.stations)

    def forward(self, x):
        h = self.encoder(self.inp(x) + self.pos)
        delta = self.head(h[:, -1]).view(-1, self.cfg.horizon, self.cfg.stations)
        return x[:, -1:] + delta


def windows(series, starts, cfg):
    x = torch.stack([series[s:s + cfg.history] for s in starts])
    y = torch.stack([series[s + cfg.history:s + cfg.history + cfg.horizon] for s in starts])
    return x, y


def main():
    cfg = TrainConfig()
    torch.manual_seed(cfg.seed)
    raw = simulate_weather(6000, cfg.stations, cfg.seed)
    cut = 5000
    mean, std = raw[:cut].mean(0), raw[:cut].std(0)
    series = (raw - mean) / std
    span = cfg.history + cfg.horizon
    test_x, test_y = windows(series, range(cut, 6000 - span, 6), cfg)

    model = Forecaster(cfg)
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.updates)
    loss_fn = nn.MSELoss()

    model.train()
    opt.zero_grad()
    running, done, micro = 0.0, 0, 0
    while done < cfg.updates:
        starts = torch.randint(0, cut - span, (cfg.micro_batch,)).tolist()
        x, y = windows(series, starts, cfg)
        loss = loss_fn(model(x), y)
        loss.backward()
        running += loss.item()
        micro += 1
        if micro % cfg.accumulate == 0:
            opt.step()
            opt.zero_grad()
            sched.step()
            done += 1
            if done % 20 == 0:
                print(f"update {done} train mse {running / (20 * cfg.accumulate):.4f}")
                running = 0.0

    model.eval()
    with torch.no_grad():
        mse = loss_fn(model(test_x), test_y).item()
        persistence = loss_fn(test_x[:, -1:].expand_as(test_y), test_y).item()
    print(f"persistence mse {persistence:.4f}")
    print(f"test mse {mse:.4f}")


if __name__ == "__main__":
    main()
