import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
N_MEL, T, K, D = 20, 32, 32, 32


def formants(n):
    bank = torch.stack([torch.exp(-0.5 * ((torch.arange(N_MEL) - a) / 1.5) ** 2)
                        + 0.7 * torch.exp(-0.5 * ((torch.arange(N_MEL) - b) / 1.5) ** 2)
                        for a in (3, 6, 9, 12) for b in (8, 11, 14, 17)])
    ph = torch.randint(0, len(bank), (n, T // 4))
    x = bank[ph].repeat_interleave(4, 1)
    gain = 0.8 + 0.4 * torch.rand(n, 1, 1)
    return x * gain + 0.05 * torch.randn(n, T, N_MEL)


class Quantizer(nn.Module):
    def __init__(self, beta=0.25):
        super().__init__()
        self.code = nn.Embedding(K, D)
        nn.init.uniform_(self.code.weight, -1.0 / K, 1.0 / K)
        self.beta = beta

    def forward(self, z):
        dist = z.pow(2).sum(-1, keepdim=True) - 2 * z @ self.code.weight.t() + self.code.weight.pow(2).sum(-1)
        idx = dist.argmin(-1)
        q = self.code(idx)
        vq = F.mse_loss(q, z.detach()) + self.beta * F.mse_loss(z, q.detach())
        return q + (z - q).detach(), idx, vq


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(N_MEL, 64, 4, stride=4), nn.GELU(), nn.Conv1d(64, 64, 1), nn.GELU(),
                                 nn.Conv1d(64, D, 1))
        self.vq = Quantizer()
        self.inp = nn.Linear(D, 64)
        self.pos = nn.Parameter(torch.randn(1, T // 4, 64) * 0.02)
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.dec = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, 4 * N_MEL)

    def forward(self, x):
        z = self.enc(x.transpose(1, 2)).transpose(1, 2)
        q, idx, vq = self.vq(z)
        y = self.out(self.dec(self.inp(q) + self.pos))
        return y.view(x.shape), idx, vq


model = Model()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
val = formants(256)
for it in range(501):
    x = formants(32)
    y, idx, vq = model(x)
    rec = F.mse_loss(y, x)
    (rec + vq).backward()
    opt.step()
    opt.zero_grad()
    if it % 50 == 0:
        with torch.no_grad():
            yv, iv, _ = model(val)
        used = torch.bincount(iv.flatten(), minlength=K).float()
        p = used / used.sum()
        ppl = torch.exp(-(p * (p + 1e-9).log()).sum())
        print(f"it {it} rec {rec.item():.4f} vq {vq.item():.5f} | val rec {F.mse_loss(yv, val).item():.4f} "
              f"(var {val.var().item():.3f}) code perplexity {ppl.item():.1f}")
