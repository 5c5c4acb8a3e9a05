import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(25)
N, SPECIES = 7, 3
SIGMA = torch.tensor([[1.0, 1.1, 1.2], [1.1, 1.3, 1.2], [1.2, 1.2, 1.5]])
DEPTH = torch.tensor([[1.0, 0.6, 1.4], [0.6, 0.4, 0.9], [1.4, 0.9, 0.7]])


def true_energy(z, r):
    i, j = torch.triu_indices(N, N, 1)
    d = (r[:, i] - r[:, j]).norm(dim=-1)
    s, e = SIGMA[z[:, i], z[:, j]], DEPTH[z[:, i], z[:, j]]
    q = torch.exp(-1.5 * (d - 1.2 * s))
    return (e * (q * q - 2 * q)).sum(1)


def dataset(n):
    grid = torch.cartesian_prod(*[torch.arange(2.0)] * 3)[:N] * 1.5
    z = torch.randint(0, SPECIES, (n, N))
    r = (grid + 0.18 * torch.randn(n, N, 3)).requires_grad_()
    e = true_energy(z, r)
    f = -torch.autograd.grad(e.sum(), r)[0]
    return z, r.detach(), e.detach(), f


class Potential(nn.Module):
    def __init__(self, d=40, heads=4, layers=2, n_rbf=14):
        super().__init__()
        self.h = heads
        self.emb = nn.Embedding(SPECIES, d)
        self.register_buffer("mu", torch.linspace(0.5, 5.0, n_rbf))
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers))
        self.edge = nn.ModuleList(nn.Sequential(nn.Linear(n_rbf, d), nn.SiLU(), nn.Linear(d, heads + d))
                                  for _ in range(layers))
        self.mix = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d)) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))
        self.register_buffer("eye", torch.eye(N, dtype=torch.bool))

    def forward(self, z, r):
        x = self.emb(z)
        diff = r[:, :, None] - r[:, None]
        d = diff.pow(2).sum(-1).masked_fill(self.eye, 1.0).sqrt()
        rbf = torch.exp(-4 * (d[..., None] - self.mu) ** 2)
        B = len(z)
        for qkv, edge, mix in zip(self.qkv, self.edge, self.mix):
            q, k, v = qkv(x).view(B, N, 3, self.h, -1).unbind(2)
            bias, filt = edge(rbf).split([self.h, x.size(-1)], -1)
            a = torch.einsum("bihc,bjhc->bijh", q, k) * q.size(-1) ** -0.5 + bias
            a = a.masked_fill(self.eye[None, :, :, None], float("-inf")).softmax(2)
            msg = a.unsqueeze(-1) * v[:, None] * filt.unflatten(-1, (self.h, -1)) * N
            x = x + mix(msg.sum(2).flatten(2))
        return self.out(x).sum((1, 2))


def energy_and_forces(model, z, r, train):
    r = r.detach().requires_grad_(True)
    e = model(z, r)
    f = -torch.autograd.grad(e.sum(), r, create_graph=train)[0]
    return e, f


z, r, e, f = dataset(3000)
shift, unit = e[:2700].mean(), f[:2700].std()
model = Potential()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
steps = 420
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
for s in range(steps):
    b = torch.randint(0, 2700, (24,))
    pe, pf = energy_and_forces(model, z[b], r[b], True)
    le = F.mse_loss(pe, (e[b] - shift) / unit) / N
    lf = F.mse_loss(pf, f[b] / unit)
    loss = 0.05 * le + 0.95 * lf
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    opt.step()
    sched.step()
    if s % 42 == 0 or s == steps - 1:
        ve, vf = energy_and_forces(model, z[2700:], r[2700:], False)
        mae_f = (vf * unit - f[2700:]).abs().mean()
        mae_e = (ve * unit + shift - e[2700:]).abs().mean() / N
        print(f"step {s:3d} loss {loss.item():.4f} (E {le.item():.4f} F {lf.item():.4f}) "
              f"val MAE E/atom {mae_e.item():.4f} F {mae_f.item():.4f} (mean |F| {f.abs().mean():.3f})")
