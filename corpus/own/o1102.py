from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Cfg:
    n_vertex: int = 6
    n_track: int = 10
    n_species: int = 6
    dim: int = 64
    batch: int = 48
    iters: int = 600
    lr: float = 4e-3
    seed: int = 3


def sample_events(cfg, n, g):
    z_v = torch.stack([torch.randperm(24, generator=g)[: cfg.n_vertex] for _ in range(n)]).float()
    z_v = (z_v - 11.5) / 6.0 + 0.02 * torch.randn(n, cfg.n_vertex, generator=g)
    species = torch.randint(0, cfg.n_species, (n, cfg.n_vertex), generator=g)
    owner = torch.randint(0, cfg.n_vertex, (n, cfg.n_track), generator=g)
    z_t = z_v.gather(1, owner) + 0.02 * torch.randn(n, cfg.n_track, generator=g)
    pt = torch.rand(n, cfg.n_track, generator=g)
    phi = 6.2832 * torch.rand(n, cfg.n_track, generator=g)
    return (z_v, species, z_t, pt, phi), species.gather(1, owner)


class FourierFeatures(nn.Module):
    def __init__(self, bands=8):
        super().__init__()
        self.register_buffer("freq", 0.5 * 1.6 ** torch.arange(bands).float())

    def forward(self, z):
        a = z.unsqueeze(-1) * self.freq
        return torch.cat([a.sin(), a.cos()], -1)


class AdditiveAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)
        self.score = nn.Linear(dim, 1, bias=False)

    def forward(self, tracks, vertices):
        q = self.query(tracks).unsqueeze(2)
        k = self.key(vertices).unsqueeze(1)
        energy = self.score(torch.tanh(q + k))
        weights = F.softmax(energy, dim=2)
        return (weights * vertices.unsqueeze(1)).sum(2)


class VertexTagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ff = FourierFeatures()
        self.vertex_in = nn.Linear(16, cfg.dim)
        self.track_in = nn.Linear(16 + 3, cfg.dim)
        self.species = nn.Embedding(cfg.n_species, cfg.dim)
        self.kind = nn.Parameter(torch.randn(2, cfg.dim) * 0.1)
        self.attend = AdditiveAttention(cfg.dim)
        self.out = nn.Sequential(nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, cfg.dim), nn.GELU(),
                                 nn.Linear(cfg.dim, cfg.n_species))

    def forward(self, z_v, species, z_t, pt, phi):
        v = self.vertex_in(self.ff(z_v)) + self.species(species) + self.kind[0]
        extra = torch.stack([pt, phi.sin(), phi.cos()], -1)
        t = self.track_in(torch.cat([self.ff(z_t), extra], -1)) + self.kind[1]
        return self.out(t + self.attend(t, v))


def evaluate(model, inputs, target):
    model.eval()
    with torch.no_grad():
        out = model(*inputs)
        loss = F.cross_entropy(out.flatten(0, 1), target.flatten())
        acc = (out.argmax(-1) == target).float().mean()
    model.train()
    return loss.item(), acc.item()


def run(cfg):
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed + 1)
    model = VertexTagger(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 50))
    test = sample_events(cfg, 400, torch.Generator().manual_seed(77))
    pool_x, pool_y = sample_events(cfg, 6000, g)
    for it in range(cfg.iters):
        idx = torch.randint(0, len(pool_y), (cfg.batch,), generator=g)
        out = model(*[t[idx] for t in pool_x])
        loss = F.cross_entropy(out.flatten(0, 1), pool_y[idx].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        warm.step()
        if it % 50 == 0 or it == cfg.iters - 1:
            vl, acc = evaluate(model, *test)
            print(f"[{it:04d}] train={loss.item():.4f} test={vl:.4f} acc={acc:.3f}", flush=True)


run(Cfg())
