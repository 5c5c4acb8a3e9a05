import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

torch.manual_seed(0)
MAX_ATOMS, N_TYPES = 12, 5


def random_molecule(g, atom_energy, pair_energy):
    n = int(torch.randint(5, MAX_ATOMS + 1, (1,), generator=g))
    z = torch.randint(1, N_TYPES + 1, (n,), generator=g)
    bonds = torch.zeros(n, n)
    for i in range(1, n):
        j = int(torch.randint(0, i, (1,), generator=g))
        bonds[i, j] = bonds[j, i] = 1
    energy = atom_energy[z].sum()
    for i in range(n):
        for j in range(i):
            if bonds[i, j]:
                energy = energy + pair_energy[z[i], z[j]]
    return z, bonds, energy


class MoleculeSet(Dataset):
    def __init__(self, n, seed, stats=None):
        table = torch.Generator().manual_seed(99)
        atom_energy = torch.randn(N_TYPES + 1, generator=table)
        pair = torch.randn(N_TYPES + 1, N_TYPES + 1, generator=table)
        pair = (pair + pair.T) / 2
        g = torch.Generator().manual_seed(seed)
        self.items = [random_molecule(g, atom_energy, pair) for _ in range(n)]
        e = torch.stack([m[2] for m in self.items])
        self.stats = stats or (e.mean(), e.std())

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        z, bonds, e = self.items[i]
        return z, bonds, ((e - self.stats[0]) / self.stats[1]).unsqueeze(0)


def collate(batch):
    b = len(batch)
    z = torch.zeros(b, MAX_ATOMS, dtype=torch.long)
    adj = torch.zeros(b, MAX_ATOMS, MAX_ATOMS)
    for k, (zi, bi, _) in enumerate(batch):
        z[k, :len(zi)] = zi
        adj[k, :len(zi), :len(zi)] = bi
    return z, adj, torch.stack([e for _, _, e in batch])


class GraphAttention(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.h, self.dk = heads, d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.edge = nn.Parameter(torch.zeros(heads, 2))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        self.msg = nn.Linear(d, d)

    def forward(self, x, adj, mask):
        b, n, d = x.shape
        y = self.n1(x)
        split = lambda t: t.view(b, n, self.h, self.dk).transpose(1, 2)
        q, k, v = split(self.q(y)), split(self.k(y)), split(self.v(y))
        bias = self.edge[:, 0, None, None] * adj[:, None] + self.edge[:, 1, None, None] * (1 - adj[:, None])
        s = q @ k.transpose(-1, -2) / self.dk ** 0.5 + bias
        s = s.masked_fill(~mask[:, None, None, :], float("-inf"))
        a = (s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        x = x + self.o(a) + adj @ self.msg(y)
        return x + self.ff(self.n2(x))


class EnergyNet(nn.Module):
    def __init__(self, d=48, layers=2):
        super().__init__()
        self.emb = nn.Embedding(N_TYPES + 1, d, padding_idx=0)
        self.layers = nn.ModuleList(GraphAttention(d) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.readout = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, z, adj):
        mask = z > 0
        x = self.emb(z)
        for layer in self.layers:
            x = layer(x, adj, mask)
        per_atom = self.readout(self.norm(x)).squeeze(-1)
        return (per_atom * mask).sum(-1) / MAX_ATOMS ** 0.5


train_set = MoleculeSet(2000, 1)
val_set = MoleculeSet(600, 2, train_set.stats)
train_loader = DataLoader(train_set, batch_size=50, shuffle=True, collate_fn=collate)
val_loader = DataLoader(val_set, batch_size=200, collate_fn=collate)

model = EnergyNet()
loss_fn = nn.MSELoss()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8 * len(train_loader))

for epoch in range(8):
    model.train()
    total = 0.0
    for z, adj, e in train_loader:
        pred = model(z, adj)
        loss = loss_fn(pred, e.view(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        err = torch.cat([(model(z, adj) - e.flatten()).abs() for z, adj, e in val_loader])
    print(f"epoch {epoch}: train mse {total / len(train_loader):.4f}, val mae {err.mean():.4f}")
print(f"validation MAE (standardised): {err.mean():.4f}")
