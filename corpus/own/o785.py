import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(31)
ELEMENTS, MAX_ATOMS = 5, 10


def make_molecules(n):
    g = torch.Generator().manual_seed(9)
    z = torch.randint(1, ELEMENTS + 1, (n, MAX_ATOMS), generator=g)
    count = torch.randint(5, MAX_ATOMS + 1, (n, 1), generator=g)
    valid = torch.arange(MAX_ATOMS)[None] < count
    step = F.normalize(torch.randn(n, MAX_ATOMS, 3, generator=g), dim=-1)
    xyz = 1.3 * step.cumsum(1)
    z, xyz = z * valid, xyz * valid.unsqueeze(-1)
    charge = torch.tensor([0.0, 0.6, -0.8, 0.3, -0.4, 0.9])[z]
    d = torch.cdist(xyz, xyz)
    pair = (valid[:, :, None] & valid[:, None, :]).float().triu(1)
    energy = (pair * charge[:, :, None] * charge[:, None, :] * torch.exp(-0.5 * d)).sum((1, 2))
    return z, xyz, (energy - energy.mean()) / energy.std()


class RadialBasis(nn.Module):
    def __init__(self, n=16, cutoff=6.0):
        super().__init__()
        self.centers = nn.Parameter(torch.linspace(0, cutoff, n))
        self.gamma = nn.Parameter(torch.tensor(2.0))

    def forward(self, d):
        return torch.exp(-self.gamma * (d.unsqueeze(-1) - self.centers) ** 2)


class GeometricLayer(nn.Module):
    def __init__(self, d, heads, n_rbf):
        super().__init__()
        self.h = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.bias, self.gate = nn.Linear(n_rbf, heads), nn.Linear(n_rbf, heads)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        self.shift = nn.Linear(d, heads)

    def forward(self, x, xyz, rbf, valid):
        B, N, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, N, 3, self.h, -1).unbind(2)
        score = torch.einsum("bihd,bjhd->bijh", q, k) / (D // self.h) ** 0.5 + self.bias(rbf)
        score = score.masked_fill(~valid[:, None, :, None], -1e9)
        att = score.softmax(2) * torch.sigmoid(self.gate(rbf))
        x = x + self.out(torch.einsum("bijh,bjhd->bihd", att, v).reshape(B, N, D))
        x = x + self.ff(self.norm2(x))
        delta = torch.einsum("bijh,bijc->bic", att * self.shift(x).unsqueeze(1), xyz[:, :, None] - xyz[:, None])
        return x, xyz + 0.05 * delta


class MolFormer(nn.Module):
    def __init__(self, d=48, heads=4, layers=2, n_rbf=16):
        super().__init__()
        self.atom = nn.Embedding(ELEMENTS + 1, d, padding_idx=0)
        self.rbf = RadialBasis(n_rbf)
        self.layers = nn.ModuleList(GeometricLayer(d, heads, n_rbf) for _ in range(layers))
        self.read = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, z, xyz):
        valid = z > 0
        x = self.atom(z)
        for layer in self.layers:
            diff = xyz[:, :, None] - xyz[:, None]
            dist = (diff.pow(2).sum(-1) + 1e-8).sqrt()
            x, xyz = layer(x, xyz, self.rbf(dist), valid)
        return (self.read(x).squeeze(-1) * valid).sum(1)


def train():
    accelerator = Accelerator(cpu=True)
    z, xyz, y = make_molecules(3600)
    loader = DataLoader(TensorDataset(z[:3200], xyz[:3200], y[:3200]), batch_size=64, shuffle=True)
    test = (z[3200:], xyz[3200:], y[3200:])
    model = MolFormer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6 * len(loader))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    step = 0
    for epoch in range(6):
        for zb, xb, yb in loader:
            loss = F.mse_loss(model(zb, xb), yb)
            optimizer.zero_grad()
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 5.0)
            if torch.isfinite(norm):
                optimizer.step()
            scheduler.step()
            if step % 30 == 0:
                accelerator.print(f"step {step:3d} mse {loss.item():.4f}")
            step += 1
        with torch.no_grad():
            mae = (model(test[0], test[1]) - test[2]).abs().mean().item()
        accelerator.print(f"epoch {epoch} test MAE {mae:.4f}")


if __name__ == "__main__":
    train()
