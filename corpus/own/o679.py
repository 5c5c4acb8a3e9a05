import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FRAMES, MELS, CODES, CDIM = 24, 24, 32, 16


def spectrograms(n, seed):
    rng = np.random.default_rng(seed)
    t, f = np.arange(FRAMES)[:, None], np.arange(MELS)[None]
    out = np.zeros((n, FRAMES, MELS))
    for i in range(n):
        f0 = rng.uniform(2, 5)
        slope = rng.uniform(-0.06, 0.06)
        for h in range(1, 5):
            out[i] += np.exp(-((f - h * (f0 + slope * t)) / 0.8) ** 2) / h ** 0.5
        on = rng.integers(0, 10)
        out[i] *= (t >= on) * np.exp(-0.04 * np.maximum(t - on, 0))
    out = np.log1p(4 * out) + rng.normal(0, 0.03, out.shape)
    return torch.tensor((out - 0.5) / 0.6, dtype=torch.float32)


class Codebook(nn.Module):
    def __init__(self, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(CODES, CDIM))
        self.register_buffer("count", torch.ones(CODES))
        self.register_buffer("total", self.codes.clone())

    def forward(self, z):
        flat = z.reshape(-1, CDIM)
        idx = torch.cdist(flat.detach(), self.codes).argmin(1)
        q = self.codes[idx].view_as(z)
        if self.training:
            self.update(flat.detach(), idx)
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, idx

    @torch.no_grad()
    def update(self, flat, idx):
        hot = F.one_hot(idx, CODES).float()
        self.count.lerp_(hot.sum(0), 1 - self.decay)
        self.total.lerp_(hot.t() @ flat, 1 - self.decay)
        dead = self.count < 0.05
        if dead.any():
            fresh = flat[torch.randint(0, len(flat), (int(dead.sum()),))]
            self.total[dead], self.count[dead] = fresh, 1.0
        self.codes.copy_(self.total / self.count[:, None].clamp_min(1e-5))


class VQModel(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        make = lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True), 1,
            enable_nested_tensor=False)
        self.lift, self.enc = nn.Linear(2 * MELS, dim), make()
        self.to_code, self.from_code = nn.Linear(dim, CDIM * 4), nn.Linear(CDIM * 4, dim)
        self.book = Codebook()
        self.dec, self.out = make(), nn.Linear(dim, 2 * MELS)
        self.pos = nn.Parameter(torch.randn(FRAMES // 2, dim) * 0.1)

    def forward(self, spec):
        x = spec.reshape(len(spec), FRAMES // 2, 2 * MELS)
        z = self.to_code(self.enc(self.lift(x) + self.pos))
        q, commit, idx = self.book(z.view(len(z), -1, 4, CDIM))
        y = self.out(self.dec(self.from_code(q.flatten(2)) + self.pos))
        return y.view_as(spec), commit, idx


class Run:
    def __init__(self):
        torch.manual_seed(9)
        self.train_set, self.test_set = spectrograms(2500, 1), spectrograms(300, 2)
        self.model = VQModel()
        self.opt = torch.optim.RAdam(self.model.parameters(), lr=2e-3)

    def step(self, batch=32):
        self.model.train()
        spec = self.train_set[torch.randint(0, len(self.train_set), (batch,))]
        rec, commit, idx = self.model(spec)
        mse = F.mse_loss(rec, spec)
        loss = mse + 0.25 * commit
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item(), mse.item(), idx

    @torch.no_grad()
    def test(self):
        self.model.eval()
        rec, _, idx = self.model(self.test_set)
        p = torch.bincount(idx, minlength=CODES).float()
        p = p / p.sum()
        return F.mse_loss(rec, self.test_set).item(), torch.exp(-(p * (p + 1e-9).log()).sum()).item()


if __name__ == "__main__":
    run = Run()
    for i in range(280):
        loss, mse, _ = run.step()
        if i % 20 == 0 or i == 279:
            print(f"step {i:4d}  loss {loss:.4f}  mse {mse:.4f}")
    mse, perp = run.test()
    print(f"test mse {mse:.4f} (variance {run.test_set.var():.4f})  code perplexity {perp:.1f}")
