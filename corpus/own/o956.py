import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

BASES = 4
LENGTH = 48
MOTIFS = [[0, 1, 2, 3, 0, 1], [2, 2, 1, 1, 3], [3, 0, 3, 0, 0, 2], [1, 3, 1, 2, 2]]


def promoter_reads(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, BASES, (n, LENGTH), generator=g)
    y = torch.zeros(n, len(MOTIFS))
    for k, motif in enumerate(MOTIFS):
        has = torch.rand(n, generator=g) < 0.4
        where = torch.randint(0, 6, (n,), generator=g) + 12 * k
        for i in torch.nonzero(has).flatten().tolist():
            s = int(where[i])
            x[i, s:s + len(motif)] = torch.tensor(motif)
        y[has, k] = 1
    return x, y


class ReZeroLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.gate_a = nn.Parameter(torch.zeros(1))
        self.gate_f = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (z.reshape(b, n, self.heads, -1) for z in (q, k, v))
        score = torch.einsum("bqhd,bkhd->bhqk", q, k) * (d // self.heads) ** -0.5
        mix = torch.einsum("bhqk,bkhd->bqhd", score.softmax(-1), v).reshape(b, n, d)
        x = x + self.gate_a * self.out(mix)
        return x + self.gate_f * self.ff(x)


class ReadNet(nn.Module):
    def __init__(self, d=40, depth=4):
        super().__init__()
        self.stem = nn.Conv1d(BASES, d, 7, padding=3)
        self.pos = nn.Parameter(0.1 * torch.randn(LENGTH, d))
        self.layers = nn.ModuleList(ReZeroLayer(d, 4) for _ in range(depth))
        self.query = nn.Parameter(torch.randn(len(MOTIFS), d) * d ** -0.5)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        h = self.stem(F.one_hot(x, BASES).float().transpose(1, 2)).transpose(1, 2) + self.pos
        h = F.relu(h)
        for layer in self.layers:
            h = layer(h)
        w = torch.einsum("kd,bnd->bkn", self.query, h).softmax(-1)
        return self.head(torch.einsum("bkn,bnd->bkd", w, h)).squeeze(-1)


torch.manual_seed(12)
loader = DataLoader(TensorDataset(*promoter_reads(2800, 5)), batch_size=40, shuffle=True)
vx, vy = promoter_reads(600, 6)
net = ReadNet()
gates = [p for n, p in net.named_parameters() if "gate" in n]
rest = [p for n, p in net.named_parameters() if "gate" not in n]
optim = torch.optim.Adam([{"params": rest, "lr": 2e-3}, {"params": gates, "lr": 1e-2}])
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, 4)
for epoch in range(4):
    net.train()
    total = 0.0
    for x, y in loader:
        optim.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        total += loss.item()
    sched.step()
    net.eval()
    with torch.no_grad():
        pred = net(vx)
        acc = ((pred > 0) == (vy > 0.5)).float().mean().item()
        vl = F.binary_cross_entropy_with_logits(pred, vy).item()
    print(f"epoch {epoch} train {total / len(loader):.4f} valid {vl:.4f} motif accuracy {acc:.4f}")
