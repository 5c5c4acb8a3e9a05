import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 21
POINTS = 32
SHAPES = ["sphere", "cube", "cylinder", "cone", "torus", "plane"]


def sample_shape(name, n, rng):
    u, v = rng.uniform(0, 2 * np.pi, n), rng.uniform(-1, 1, n)
    if name == "sphere":
        r = np.sqrt(1 - v ** 2)
        p = np.stack([r * np.cos(u), r * np.sin(u), v], 1)
    elif name == "cube":
        p = rng.uniform(-1, 1, (n, 3))
        p[np.arange(n), rng.integers(0, 3, n)] = rng.choice([-1.0, 1.0], n)
        p *= 0.75
    elif name == "cylinder":
        p = np.stack([0.7 * np.cos(u), 0.7 * np.sin(u), v], 1)
    elif name == "cone":
        h = np.sqrt((v + 1) / 2)
        p = np.stack([0.9 * h * np.cos(u), 0.9 * h * np.sin(u), 1 - 2 * h], 1)
    elif name == "torus":
        w = rng.uniform(0, 2 * np.pi, n)
        p = np.stack([(0.8 + 0.3 * np.cos(w)) * np.cos(u), (0.8 + 0.3 * np.cos(w)) * np.sin(u), 0.3 * np.sin(w)], 1)
    else:
        p = np.stack([rng.uniform(-1, 1, n), v, np.zeros(n)], 1)
        tilt = rng.uniform(-0.5, 0.5)
        p[:, 2] = tilt * p[:, 0]
    a = rng.uniform(0, 2 * np.pi)
    rot = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    p = p @ rot.T * rng.uniform(0.8, 1.2, 3)
    return p + rng.normal(0, 0.04, p.shape)


def build_split(per_class, seed):
    rng = np.random.default_rng(seed)
    clouds, labels = [], []
    for label, name in enumerate(SHAPES):
        for _ in range(per_class):
            clouds.append(sample_shape(name, POINTS, rng))
            labels.append(label)
    return TensorDataset(torch.tensor(np.stack(clouds), dtype=torch.float32), torch.tensor(labels))


class MAB(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.att = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ln_q, self.ln_k, self.ln_f = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, q, kv):
        kv = self.ln_k(kv)
        q = q + self.att(self.ln_q(q), kv, kv, need_weights=False)[0]
        return q + self.ff(self.ln_f(q))


class SetTransformer(nn.Module):
    def __init__(self, classes, dim=48, heads=4, depth=2):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(3, dim), nn.GELU(), nn.Linear(dim, dim))
        self.sab = nn.ModuleList(MAB(dim, heads) for _ in range(depth))
        self.seed = nn.Parameter(torch.randn(1, 2, dim) * 0.1)
        self.pma = MAB(dim, heads)
        self.cls = nn.Linear(2 * dim, classes)

    def forward(self, pts):
        h = self.lift(pts)
        for blk in self.sab:
            h = blk(h, h)
        pooled = self.pma(self.seed.expand(len(pts), -1, -1), h)
        return self.cls(pooled.flatten(1))


def get_loaders(batch_size):
    train = build_split(130, SEED)
    test = build_split(30, SEED + 1)
    return (DataLoader(train, batch_size=batch_size, drop_last=True),
            DataLoader(test, batch_size=90))


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right, nll, n = 0, 0.0, 0
    for x, y in loader:
        out = model(x)
        right += (out.argmax(1) == y).sum().item()
        nll += nn.functional.cross_entropy(out, y, reduction="sum").item()
        n += len(y)
    return right / n, nll / n


def main():
    torch.manual_seed(SEED)
    train, test = get_loaders(16)
    model = SetTransformer(len(SHAPES))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    step = 0
    for epoch in range(4):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 12 == 0:
                print(f"epoch {epoch} step {step:3d} loss {loss.item():.4f}")
            step += 1
        acc, nll = evaluate(model, test)
        print(f"epoch {epoch} test accuracy {acc:.3f} nll {nll:.4f}")


if __name__ == "__main__":
    main()
