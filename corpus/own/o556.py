import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

ITEMS, LEN, PAD = 120, 24, 0
NEG = -100


class Baskets(Dataset):

    def __init__(self, n, seed):
        r = np.random.default_rng(seed)
        world = np.random.default_rng(44)
        self.rows = []
        nxt = world.permutation(ITEMS - 1)
        alt = world.permutation(ITEMS - 1)
        for seg in range(4):
            for _ in range(n // 4):
                s = [int(r.integers(0, ITEMS - 1))]
                for _ in range(int(r.integers(6, LEN + 1))):
                    step = nxt[s[-1]] if seg % 2 == 0 else alt[s[-1]]
                    s.append(int(step) if r.random() < 0.85 else int(r.integers(0, ITEMS - 1)))
                self.rows.append([k + 1 for k in s])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pack(rows):
    x = torch.full((len(rows), LEN), PAD)
    y = torch.full((len(rows), LEN), NEG)
    for i, s in enumerate(rows):
        x[i, LEN - len(s) + 1:] = torch.tensor(s[:-1])
        y[i, LEN - len(s) + 1:] = torch.tensor(s[1:])
    return x, y


def build(d=56, depth=2, heads=4):
    gen = torch.Generator().manual_seed(3)
    shape = {"item": (ITEMS, d), "gap": (heads, LEN), "head": (ITEMS, d)}
    for i in range(depth):
        shape |= {f"q{i}": (heads, d, d // heads), f"k{i}": (heads, d, d // heads), f"v{i}": (heads, d, d // heads),
                  f"o{i}": (heads, d // heads, d), f"a{i}": (d, 3 * d), f"b{i}": (3 * d, d)}
    w = {k: torch.randn(s, generator=gen) * d ** -0.5 for k, s in shape.items()}
    w["gap"].zero_()
    return {k: v.requires_grad_() for k, v in w.items()}


def forward(w, x, depth=2):
    real = x != PAD
    i = torch.arange(LEN)
    lag = i[None, :] - i[:, None]
    ok = (lag >= 0)[None] & real[:, :, None]
    h = w["item"][x]
    for n in range(depth):
        z = F.rms_norm(h, h.shape[-1:])
        q = torch.einsum("btd,hde->bhte", z, w[f"q{n}"])
        k = torch.einsum("btd,hde->bhte", z, w[f"k{n}"])
        v = torch.einsum("btd,hde->bhte", z, w[f"v{n}"])
        s = torch.einsum("bhke,bhqe->bhkq", k, q) / q.shape[-1] ** 0.5 + w["gap"][:, lag.clamp(min=0)]
        p = s.masked_fill(~ok[:, None], -1e4).softmax(2)
        h = h + torch.einsum("bhkq,bhke,hed->bqd", p, v, w[f"o{n}"])
        h = h + F.relu(F.rms_norm(h, h.shape[-1:]) @ w[f"a{n}"]) ** 2 @ w[f"b{n}"]
    return F.rms_norm(h, h.shape[-1:]) @ w["head"].T


def cost(w, x, y):
    return F.cross_entropy(forward(w, x).transpose(1, 2), y, ignore_index=NEG)


def main():
    torch.manual_seed(7)
    train, held = Baskets(6000, 1), Baskets(400, 2)
    hx, hy = pack(held.rows)
    w = build()
    opt = torch.optim.Adam(w.values(), lr=4e-3, betas=(0.9, 0.95))
    loader = DataLoader(train, batch_size=48, sampler=RandomSampler(train, num_samples=260 * 48, replacement=True), collate_fn=pack)
    for step, (x, y) in enumerate(loader):
        opt.param_groups[0]["lr"] = 4e-3 * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / 260)
        loss = cost(w, x, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 26 == 0 or step == 259:
            with torch.no_grad():
                print(f"{step:3d} loss {loss.item():.4f} held-out {cost(w, hx, hy).item():.4f}")


main()
