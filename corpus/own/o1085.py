import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(10)
NODES, KINDS, BATCH, STEPS = 14, 5, 32, 240


def molecules(n):
    kind = torch.randint(KINDS, (n, NODES))
    size = torch.randint(9, NODES + 1, (n,))
    alive = torch.arange(NODES)[None] < size[:, None]
    adj = torch.zeros(n, NODES, NODES)
    for v in range(1, NODES):
        parent = (torch.rand(n) * v).long()
        adj[torch.arange(n), v, parent] = 1
    extra = (torch.rand(n, NODES, NODES) < 0.06).float().tril(-1)
    adj = ((adj + extra) > 0).float()
    adj = adj + adj.transpose(1, 2)
    adj = adj * alive[:, None] * alive[:, :, None]
    hetero = (kind[:, :, None] + kind[:, None, :] == KINDS - 1).float()
    bonds = (adj * hetero).sum((1, 2)) / 2
    leaves = ((adj.sum(-1) == 1) & alive & (kind == 2)).float().sum(1)
    y = bonds - 0.8 * leaves
    perm = torch.rand(n, NODES).argsort(1)
    rows = torch.arange(n)[:, None]
    return (kind[rows, perm], adj[rows[:, :, None], perm[:, :, None], perm[:, None, :]], alive[rows, perm],
            (y - 1.2) / 1.7)


class GraphAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.edge = nn.Parameter(torch.tensor([2.0, 1.0, 0.0, -1.0])[:heads].view(1, heads, 1, 1).clone())

    def forward(self, x, adj, alive):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.transpose(2, 3) * (d // self.h) ** -0.5 + self.edge * adj[:, None]
        s = s.masked_fill(~alive[:, None, None], -1e9)
        gate = torch.where(torch.arange(self.h).view(1, -1, 1, 1) < 2, adj[:, None], torch.ones(()))
        w = s.sigmoid() * gate * alive[:, None, None]
        return self.o((w @ v).transpose(1, 2).reshape(b, n, d) / 3.0)


class GraphTransformer(nn.Module):
    def __init__(self, dim=48, heads=4, depth=2):
        super().__init__()
        self.node = nn.Embedding(KINDS, dim)
        self.att = nn.ModuleList(GraphAttention(dim, heads) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
                                for _ in range(depth))
        self.ln = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))

    def forward(self, kind, adj, alive):
        x = self.node(kind)
        for att, ff, ln in zip(self.att, self.ff, self.ln):
            x = x + att(ln(x), adj, alive)
            x = x + ff(x)
        x = (x * alive[..., None]).sum(1) / 4.0
        return self.out(x).squeeze(-1)


model = GraphTransformer()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
test = molecules(400)
for step in range(STEPS):
    kind, adj, alive, y = molecules(BATCH)
    loss = F.mse_loss(model(kind, adj, alive), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 20 == 0 or step == STEPS - 1:
        with torch.no_grad():
            err = F.mse_loss(model(*test[:3]), test[3]).item()
        print(f"{step:4d} train {loss.item():.4f} test {err:.4f}")
print(f"target variance {test[3].var().item():.4f}")
