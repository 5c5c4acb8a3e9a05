import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ATOMS, BONDS = 6, 3
rng = np.random.default_rng(8)
torch.manual_seed(8)

PAIR = rng.normal(0, 1.0, (ATOMS, ATOMS, BONDS))
PAIR = (PAIR + PAIR.transpose(1, 0, 2)) / 2


def random_molecule():
    n = int(rng.integers(5, 13))
    atoms = rng.integers(0, ATOMS, n)
    edges, kinds = [], []
    for i in range(1, n):
        edges.append((i, int(rng.integers(max(0, i - 3), i))))
        kinds.append(int(rng.integers(0, BONDS)))
    if n > 6:
        edges.append((0, n - 1))
        kinds.append(int(rng.integers(0, BONDS)))
    y = sum(PAIR[atoms[i], atoms[j], k] for (i, j), k in zip(edges, kinds)) / np.sqrt(n)
    return atoms, np.array(edges), np.array(kinds), y


def collate(mols):
    atoms, src, dst, kind, batch, ys, off = [], [], [], [], [], [], 0
    for b, (a, e, k, y) in enumerate(mols):
        atoms.append(a)
        src.append(np.concatenate([e[:, 0], e[:, 1]]) + off)
        dst.append(np.concatenate([e[:, 1], e[:, 0]]) + off)
        kind.append(np.concatenate([k, k]))
        batch.append(np.full(len(a), b))
        ys.append(y)
        off += len(a)
    cat = lambda v: torch.from_numpy(np.concatenate(v)).long()
    return cat(atoms), cat(src), cat(dst), cat(kind), cat(batch), torch.tensor(ys, dtype=torch.float32)


def to_dense_batch(h, batch):
    counts = torch.bincount(batch)
    rows = h.detach().split(counts.tolist())
    dense = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(dense.size(1))[None] < counts[:, None]
    return dense, mask


class GatedConv(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bond = nn.Embedding(BONDS, dim)
        self.msg = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, h, src, dst, kind):
        z = self.norm(h)
        m = self.msg(torch.cat([z[src] + self.bond(kind), z[dst]], -1))
        return h + torch.zeros_like(h).index_add_(0, dst, m)


class MolNet(nn.Module):
    def __init__(self, dim=40, convs=2, heads=4):
        super().__init__()
        self.atom = nn.Embedding(ATOMS, dim)
        self.convs = nn.ModuleList(GatedConv(dim) for _ in range(convs))
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.readout = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, atoms, src, dst, kind, batch):
        h = self.atom(atoms)
        for conv in self.convs:
            h = conv(h, src, dst, kind)
        x, mask = to_dense_batch(h, batch)
        x = self.readout(x, src_key_padding_mask=~mask)
        x = self.out(x).squeeze(-1) * mask
        return x.sum(1) / mask.sum(1).float().sqrt()


def main(steps=260, batch=32):
    train = [random_molecule() for _ in range(2000)]
    held = [random_molecule() for _ in range(300)]
    model = MolNet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-4)
    running = None
    for step in range(steps):
        picks = rng.integers(0, len(train), batch)
        *inputs, y = collate([train[i] for i in picks])
        loss = F.mse_loss(model(*inputs), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        sched.step()
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d}  mse {running:.4f}")
    with torch.no_grad():
        *inputs, y = collate(held)
        p = model(*inputs)
    r2 = 1 - ((p - y) ** 2).mean() / y.var()
    print(f"held-out mse {F.mse_loss(p, y):.4f}  R2 {r2:.3f}")


if __name__ == "__main__":
    main()
