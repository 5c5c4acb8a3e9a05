import copy
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(33)
LEN, PATCH, DIM = 96, 6, 40
N = LEN // PATCH


def beats(n, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(LEN)
    y = rng.integers(0, 3, n)
    bump = lambda c, w, a: a * np.exp(-((t - c) / w) ** 2)
    x = np.zeros((n, LEN))
    for i in range(n):
        c = rng.uniform(40, 52)
        qrs_w = 5.0 if y[i] == 1 else 2.2
        p_amp = 0.0 if y[i] == 1 else 0.25
        t_amp = -0.35 if y[i] == 2 else 0.35
        x[i] = bump(c, qrs_w, 1.2) - bump(c + 6, 2.5, 0.4) + bump(c - 18, 4, p_amp) + bump(c + 26, 6, t_amp)
        x[i] += 0.2 * np.sin(2 * np.pi * (t / 90 + rng.random())) * rng.random()
    x += rng.normal(0, 0.06, x.shape)
    return torch.tensor(x / 0.35, dtype=torch.float32), torch.tensor(y)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(PATCH, DIM)
        self.pos = nn.Parameter(torch.randn(N, DIM) * 0.1)
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.05, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x, keep=None):
        h = self.lift(x.view(len(x), N, PATCH)) + self.pos
        if keep is not None:
            h = torch.gather(h, 1, keep[..., None].expand(-1, -1, DIM))
        return self.norm(self.body(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blank = nn.Parameter(torch.randn(DIM) * 0.02)
        self.pos = nn.Parameter(torch.randn(N, DIM) * 0.1)
        self.layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(DIM, PATCH)

    def forward(self, h, keep):
        full = self.blank.expand(len(h), N, DIM).scatter(1, keep[..., None].expand(-1, -1, DIM), h)
        return self.out(self.layer(full + self.pos))


def pretrain(enc, x, steps, batch=48, visible=8):
    dec = Decoder()
    opt = torch.optim.AdamW(list(enc.parameters()) + list(dec.parameters()), lr=2e-3, betas=(0.9, 0.95))
    sched = torch.optim.lr_scheduler.CyclicLR(opt, 2e-4, 2e-3, step_size_up=40, mode="triangular2",
                                              cycle_momentum=False)
    enc.train()
    for step in range(steps):
        b = x[torch.randint(0, len(x), (batch,))]
        order = torch.rand(batch, N).argsort(1)
        keep, hidden = order[:, :visible], order[:, visible:]
        rec = dec(enc(b, keep), keep)
        gap = (rec - b.view(batch, N, PATCH)).square().mean(-1)
        loss = gap.gather(1, hidden).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"pretrain {step:4d}  masked mse {loss.item():.4f}")


def probe(enc, x, y, steps, batch=48):
    enc = copy.deepcopy(enc).requires_grad_(False).eval()
    head = nn.Sequential(nn.Linear(N * DIM, 3))
    opt = torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        idx = torch.randint(0, len(x), (batch,))
        with torch.no_grad():
            feat = enc(x[idx]).flatten(1)
        loss = F.cross_entropy(head(feat), y[idx], label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"probe    {step:4d}  loss {loss.item():.4f}")
    return lambda z: head(enc(z).flatten(1))


if __name__ == "__main__":
    x, y = beats(3000, 1)
    tx, ty = beats(400, 2)
    enc = Encoder()
    pretrain(enc, x, 240)
    clf = probe(enc, x[:600], y[:600], 100)
    with torch.no_grad():
        print(f"probe accuracy {(clf(tx).argmax(1) == ty).float().mean():.3f}")
