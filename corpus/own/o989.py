import torch, time
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)
torch.set_num_threads(1)
N_PTS, K, CLASSES = 64, 10, 3


def random_frame(g):
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=g))
    return q


def make_cloud(g):
    """Two parts of 32 points each; every part has its own kind, orientation and place."""
    pts, lab = [], []
    for _ in range(2):
        kind = int(torch.randint(0, 3, (1,), generator=g))
        scale = torch.tensor([[5., .1, .1], [2.5, 2.5, .1], [1.5, 1.5, 1.5]][kind])
        local = (torch.rand(32, 3, generator=g) * 2 - 1) * scale
        centre = torch.randn(3, generator=g) * 5.0
        pts.append(local @ random_frame(g).T + centre)
        lab.append(torch.full((32,), kind))
    pts, lab = torch.cat(pts), torch.cat(lab)
    perm = torch.randperm(len(pts), generator=g)
    return pts[perm], lab[perm]


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    clouds = [make_cloud(g) for _ in range(n)]
    return torch.stack([c[0] for c in clouds]), torch.stack([c[1] for c in clouds])


def knn(xyz, k):
    d = torch.cdist(xyz, xyz)
    return d.topk(k, dim=-1, largest=False).indices


def group(x, idx):
    B, N, C = x.shape
    flat = idx.reshape(-1)
    return x.reshape(B * N, C)[flat].view(B, N, idx.shape[-1], C)


class PointAttention(nn.Module):
    """Vector attention over a neighbourhood, as in Point Transformer."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.delta = nn.Sequential(nn.Linear(3, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.gamma = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.out = nn.Linear(dim, dim)

    def forward(self, x, xyz, idx):
        rel = xyz.unsqueeze(2) - group(xyz, idx)
        pe = self.delta(rel)
        q, k, v = self.q(x), group(self.k(x), idx), group(self.v(x), idx)
        w = self.gamma(q.unsqueeze(2) - k + pe).softmax(dim=2)
        return self.out(torch.einsum("bnkc,bnkc->bnc", w, v + pe))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = PointAttention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, xyz, idx):
        x = x + self.att(self.n1(x), xyz, idx)
        return x + self.mlp(self.n2(x))


class Net(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.stem = nn.Linear(3, dim)
        nn.init.normal_(self.stem.weight, std=0.02)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, CLASSES))

    def forward(self, xyz):
        idx = knn(xyz, K)
        x = self.stem(xyz)
        for b in self.blocks:
            x = b(x, xyz, idx)
        return self.head(x)


xtr, ytr = make_set(1200, 1)
xva, yva = make_set(128, 2)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
BATCH, EPOCHS = 12, 3
per_epoch = len(xtr) // BATCH
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS * per_epoch)
t0 = time.time()

step = 0
for epoch in range(EPOCHS):
    order = torch.randperm(len(xtr))
    for i in range(per_epoch):
        sel = order[i * BATCH:(i + 1) * BATCH]
        logits = net(xtr[sel])
        loss = F.cross_entropy(logits.flatten(0, 1), ytr[sel].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 25 == 0:
            acc = (logits.argmax(-1) == ytr[sel]).float().mean().item()
            print(f"epoch {epoch} step {step:4d} loss {loss.item():.4f} acc {acc:.3f}")
        step += 1
    net.eval()
    with torch.no_grad():
        lg = torch.cat([net(b) for b in xva.split(16)])
    net.train()
    print(f"== epoch {epoch}: val loss {F.cross_entropy(lg.flatten(0, 1), yva.flatten()):.4f} "
          f"val acc {(lg.argmax(-1) == yva).float().mean():.3f} [{time.time() - t0:.1f}s]")
