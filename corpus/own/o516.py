from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_train: int = 6000
    n_test: int = 2000
    dim: int = 10
    stages: int = 6
    steps_per_stage: int = 60
    batch: int = 512
    width: int = 64
    shrinkage: float = 0.6
    lr: float = 6e-3
    seed: int = 5


class ResidualBlock(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.norm = nn.LayerNorm(w)
        self.a = nn.Linear(w, 2 * w)
        self.b = nn.Linear(2 * w, w)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, h):
        return h + self.b(F.gelu(self.a(self.norm(h))))


def weak_learner(cfg):
    head = nn.Linear(cfg.width, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Linear(cfg.dim, cfg.width), nn.GELU(),
                         ResidualBlock(cfg.width), ResidualBlock(cfg.width), head)


def friedman(n, d, g):
    x = torch.rand(n, d, generator=g)
    clean = (10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
             + 10 * x[:, 3] + 5 * x[:, 4])
    noise = torch.randn(n, generator=g)
    outlier = torch.rand(n, generator=g) < 0.08
    noise = torch.where(outlier, 25 * noise, noise)
    return 2 * x - 1, clean + noise, clean


class BoostedNets:
    def __init__(self, cfg):
        self.cfg, self.learners = cfg, []

    def fit(self, x, y, report):
        cfg = self.cfg
        self.offset = y.median()
        self.scale = 1.4826 * (y - self.offset).abs().median()
        residual = (y - self.offset) / self.scale
        step = 0
        for stage in range(cfg.stages):
            net = weak_learner(cfg)
            opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
            sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.steps_per_stage)
            delta = torch.quantile(residual.abs(), 0.85).item()
            for k in range(cfg.steps_per_stage):
                idx = torch.randint(len(x), (cfg.batch,))
                loss = F.huber_loss(net(x[idx]).squeeze(1), residual[idx], delta=delta)
                opt.zero_grad()
                loss.backward()
                opt.step()
                sched.step()
                if k % 20 == 0:
                    print(f"  stage {stage} step {step:4d} loss {loss.item():.4f}")
                step += 1
            net.eval().requires_grad_(False)
            self.learners.append(net)
            residual = residual - cfg.shrinkage * net(x).squeeze(1)
            report(self, stage, step, delta, loss.item(), F.huber_loss(residual, torch.zeros_like(residual), delta=0.5).item())
        return self

    @torch.no_grad()
    def predict(self, x):
        f = sum(self.cfg.shrinkage * net(x).squeeze(1) for net in self.learners)
        return self.offset + self.scale * f


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    x, y, _ = friedman(cfg.n_train, cfg.dim, g)
    xt, _, clean = friedman(cfg.n_test, cfg.dim, g)

    def report(model, stage, step, delta, loss, fixed):
        err = (model.predict(xt) - clean).abs().mean()
        print(f"stage {stage} step {step:4d} delta {delta:.3f} batch huber {loss:.4f} | "
              f"train huber(0.5) {fixed:.4f} | test MAE to the clean signal {err:.3f}")

    print(f"constant predictor: test MAE {(y.median() - clean).abs().mean():.3f}")
    BoostedNets(cfg).fit(x, y, report)
