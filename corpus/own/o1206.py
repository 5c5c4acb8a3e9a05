import time
import torch
import torch.nn as nn
import torch.nn.functional as F


class Traces:
    KINDS, PATCHES, SAMPLES = (10, 24, 16)

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        fixed = torch.Generator().manual_seed(1000)
        basis = torch.randn(self.KINDS, self.SAMPLES, generator=fixed)
        self.shapes = F.avg_pool1d(F.pad(basis[:, None], (2, 2), mode="circular"), 5, 1)[:, 0] * 2.5
        self.table = torch.softmax(
            3.5 * torch.randn(self.KINDS, self.KINDS, self.KINDS, generator=fixed), -1
        )

    def batch(self, n):
        kinds = torch.randint(self.KINDS, (n, self.PATCHES), generator=self.g)
        for t in range(2, self.PATCHES):
            p = self.table[kinds[:, t - 2], kinds[:, t - 1]]
            kinds[:, t] = torch.multinomial(p, 1, generator=self.g)[:, 0]
        gain = 0.9 + 0.2 * torch.rand(n, self.PATCHES, 1, generator=self.g)
        noise = 0.1 * torch.randn(n, self.PATCHES, self.SAMPLES, generator=self.g)
        return self.shapes[kinds] * gain + noise


class Codebook(nn.Module):
    def __init__(self, size, dim, decay=0.97):
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(size, dim))
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", self.codes.clone())

    def forward(self, z):
        flat = z.detach().reshape(-1, z.size(-1))
        idx = torch.cdist(flat, self.codes).argmin(-1)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(idx, len(self.codes)).float()
                self.count.lerp_(hot.sum(0), 1 - self.decay)
                self.total.lerp_(hot.T @ flat, 1 - self.decay)
                self.codes.copy_(self.total / self.count.clamp_min(0.01)[:, None])
                unused = self.count < 0.3
                if unused.any():
                    pick = torch.randint(len(flat), (int(unused.sum()),))
                    self.codes[unused] = flat[pick]
                    self.total[unused] = flat[pick]
                    self.count[unused] = 1.0
        q = self.codes[idx].view_as(z)
        commit = F.mse_loss(z, q)
        return (z + (q - z).detach(), commit, idx.view(z.shape[:-1]))


class VQ(nn.Module):
    def __init__(self, size=24, dim=8, hidden=64):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.book = Codebook(size, dim)
        self.dec = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, 16))

    def forward(self, x):
        q, commit, idx = self.book(self.enc(x))
        return (self.dec(q), commit, idx)


class Prior(nn.Module):
    def __init__(self, size, d=64, heads=4, layers=2):
        super().__init__()
        self.size = size
        self.tok = nn.Embedding(size + 1, d)
        self.pos = nn.Parameter(torch.zeros(Traces.PATCHES, d))
        mk = lambda: nn.ModuleList(
            [
                nn.LayerNorm(d),
                nn.Linear(d, 3 * d),
                nn.Linear(d, d),
                nn.LayerNorm(d),
                nn.Linear(d, 2 * d),
                nn.Linear(2 * d, d),
            ]
        )
        self.layers = nn.ModuleList([mk() for _ in range(layers)])
        self.heads = heads
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, size)
        nn.init.zeros_(self.out.weight)

    def forward(self, codes):
        start = torch.full_like(codes[:, :1], self.size)
        x = self.tok(torch.cat([start, codes[:, :-1]], 1)) + self.pos
        B, T, D = x.shape
        for n1, qkv, proj, n2, up, down in self.layers:
            q, k, v = (
                t.view(B, T, self.heads, -1).transpose(1, 2) for t in qkv(n1(x)).chunk(3, -1)
            )
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + proj(a.transpose(1, 2).reshape(B, T, D))
            x = x + down(F.gelu(up(n2(x))))
        return self.out(self.norm(x))


def stage_one(vq, data, steps=500):
    opt = torch.optim.Adam(vq.parameters(), lr=0.002)
    for step in range(steps):
        x = data.batch(24)
        rec, commit, idx = vq(x)
        mse = F.mse_loss(rec, x)
        loss = mse + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"vq    {step:4d}  loss {loss.item():.4f}  codes in use {idx.unique().numel()}")
    print(
        f"vq done, reconstruction mse {mse.item():.4f}, signal power {x.pow(2).mean().item():.3f}"
    )


def stage_two(prior, vq, data, steps=500):
    vq.eval().requires_grad_(False)
    opt = torch.optim.AdamW(prior.parameters(), lr=0.002)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=40)
    for step in range(steps):
        codes = vq(data.batch(48))[2]
        loss = F.cross_entropy(prior(codes).flatten(0, 1), codes.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        warm.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"prior {step:4d}  nats per code {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(9)
    t0 = time.time()
    vq = VQ()
    stage_one(vq, Traces(1))
    prior = Prior(24)
    stage_two(prior, vq, Traces(2))
    with torch.no_grad():
        codes = vq(Traces(3).batch(400))[2]
        nll = F.cross_entropy(prior(codes).flatten(0, 1), codes.flatten()).item()
        freq = torch.bincount(codes.flatten(), minlength=24).float()
        freq = freq / freq.sum()
        unigram = -(freq * freq.clamp_min(1e-09).log()).sum().item()
    print(f"held-out nats per code {nll:.3f}, unigram {unigram:.3f}, {time.time() - t0:.0f}s")
