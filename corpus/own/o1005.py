import time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
torch.set_num_threads(1)
MEL, FR, STACK, CODES, PHONES = 24, 80, 4, 64, 8
TOK = FR // STACK


def utterances(n, seed):
    """Speech-like features: a Markov chain over phones, each with its spectral envelope."""
    rng = np.random.default_rng(seed)
    fixed = np.random.default_rng(50)
    env = fixed.normal(0, 1.0, (PHONES, MEL))
    nxt = fixed.dirichlet(np.full(PHONES, 0.25), PHONES)
    x, ph = np.zeros((n, FR, MEL), np.float32), np.zeros((n, TOK), np.int64)
    for i in range(n):
        p, voice, t = rng.integers(PHONES), rng.normal(0, 0.3, MEL), 0
        while t < TOK:
            d = int(rng.integers(2, 4))
            ph[i, t:t + d] = p
            t += d
            p = rng.choice(PHONES, p=nxt[p])
        x[i] = np.repeat(env[ph[i]], STACK, 0) + voice + 0.4 * rng.standard_normal((FR, MEL))
    return torch.from_numpy(x), torch.from_numpy(ph)


class RandomQuantizer(nn.Module):
    def __init__(self, dim, codes, cdim=16):
        super().__init__()
        self.proj = nn.Linear(dim, cdim, bias=False)
        nn.init.xavier_normal_(self.proj.weight)
        self.book = nn.Parameter(F.normalize(torch.randn(codes, cdim), dim=-1))
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x):
        z = F.normalize(self.proj(x), dim=-1)
        return (z @ self.book.T).argmax(-1)


class Encoder(nn.Module):
    def __init__(self, dim=64, depth=2):
        super().__init__()
        self.front = nn.Linear(MEL * STACK, dim)
        self.pos = nn.Conv1d(dim, dim, 5, padding=2, groups=4)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)

    def forward(self, x):
        h = self.front(x)
        return self.body(h + F.gelu(self.pos(h.transpose(1, 2))).transpose(1, 2))


def span_mask(b, p=0.15, span=2):
    starts = torch.rand(b, TOK) < p
    m = starts.clone()
    for s in range(1, span):
        m[:, s:] |= starts[:, :-s]
    return m


def stack(x):
    return x.reshape(x.shape[0], TOK, STACK * MEL)


def hidden_frames(enc, x, y):
    x = stack(x)
    m = torch.zeros(len(x), TOK, dtype=torch.bool)
    m[:, 4::5] = True
    with torch.no_grad():
        return enc(torch.where(m[..., None], torch.zeros_like(x), x))[m], y[m]


def probe(enc, tr, te):
    """Multinomial regression for the phone under every fifth (hidden) token."""
    (fa, ya), (fb, yb) = hidden_frames(enc, *tr), hidden_frames(enc, *te)
    lin = nn.Linear(fa.shape[-1], PHONES)
    opt = torch.optim.LBFGS(lin.parameters(), max_iter=40)

    def closure():
        opt.zero_grad()
        l = F.cross_entropy(lin(fa), ya) + 1e-4 * lin.weight.square().sum()
        l.backward()
        return l

    opt.step(closure)
    with torch.no_grad():
        return (lin(fb).argmax(-1) == yb).float().mean().item()


x, ph = utterances(2000, 1)
mu, sd = x.mean((0, 1)), x.std((0, 1))
x = (x - mu) / sd
small, held = utterances(60, 2), utterances(200, 3)
small, held = ((small[0] - mu) / sd, small[1]), ((held[0] - mu) / sd, held[1])

enc, quant, head = Encoder(), RandomQuantizer(MEL * STACK, CODES), nn.Linear(64, CODES)
print(f"probe before: {probe(enc, small, held):.3f}")
opt = torch.optim.AdamW([*enc.parameters(), *head.parameters()], lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
t0 = time.time()
for step in range(300):
    for gr in opt.param_groups:
        gr["lr"] = 2e-3 * min((step + 1) / 40, (40 / (step + 1)) ** 0.5)
    xb = stack(x[torch.randint(0, len(x), (32,))])
    target = quant(xb)
    m = span_mask(len(xb))
    noisy = torch.where(m[..., None], 0.1 * torch.randn_like(xb), xb)
    logits = head(enc(noisy))[m]
    loss = F.cross_entropy(logits, target[m])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 299:
        used = target.unique().numel()
        print(f"step {step:3d} loss {loss.item():.4f} masked acc {(logits.argmax(-1) == target[m]).float().mean():.3f} "
              f"codes used {used} ({time.time() - t0:.1f}s)")
print(f"probe after: {probe(enc, small, held):.3f}")
