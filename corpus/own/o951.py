import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)

MAX_OBJ, N_POINTS, EMB = 5, 96, 8
DELTA_V, DELTA_D = 0.5, 1.5


def make_scene(g):
    k = int(torch.randint(2, MAX_OBJ + 1, (1,), generator=g))
    owner = torch.arange(N_POINTS) % k
    angle = torch.linspace(0, 6.283, k + 1)[:k] + torch.rand(1, generator=g) * 6.283
    centre = torch.stack([2.2 * angle.cos(), 2.2 * angle.sin(), torch.rand(k, generator=g)], -1)
    kind = torch.randint(0, 2, (k,), generator=g)
    d = F.normalize(torch.randn(N_POINTS, 3, generator=g), dim=-1)
    box = d / d.abs().amax(-1, keepdim=True)
    shape = torch.where(kind[owner, None] == 0, d, box) * 0.45
    pts = centre[owner] + shape + 0.05 * torch.randn(N_POINTS, 3, generator=g)
    perm = torch.randperm(N_POINTS, generator=g)
    return pts[perm], owner[perm]


def scenes(n, seed):
    g = torch.Generator().manual_seed(seed)
    pts, own = zip(*(make_scene(g) for _ in range(n)))
    return torch.stack(pts), torch.stack(own)


class PointBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        y = self.n1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class InstanceEmbedder(nn.Module):
    def __init__(self, d=48, depth=2, heads=4):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.blocks = nn.Sequential(*[PointBlock(d, heads) for _ in range(depth)])
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, EMB))

    def forward(self, p):
        return self.out(self.blocks(self.inp(p)))


def discriminative_loss(emb, owner):
    onehot = F.one_hot(owner, MAX_OBJ).float()
    count = onehot.sum(1)
    present = (count > 0).float()
    mu = torch.einsum("bne,bnk->bke", emb, onehot) / count.clamp(min=1)[..., None]
    own_mu = torch.gather(mu, 1, owner[..., None].expand(-1, -1, EMB))
    pull = F.relu((emb - own_mu).pow(2).sum(-1).add(1e-8).sqrt() - DELTA_V).pow(2).mean()
    gap = (mu[:, :, None] - mu[:, None]).pow(2).sum(-1).add(1e-8).sqrt()
    pair = present[:, :, None] * present[:, None] * (1 - torch.eye(MAX_OBJ))
    push = (F.relu(2 * DELTA_D - gap).pow(2) * pair).sum() / pair.sum()
    norm = torch.sqrt(torch.sum(mu ** 2, dim=-1) + 1e-12)
    reg = (norm * present).sum() / present.sum()
    return pull + push + 0.001 * reg


@torch.no_grad()
def pair_accuracy(model, pts, owner):
    emb = model(pts)
    same = torch.cdist(emb, emb) < DELTA_D
    truth = owner[:, :, None] == owner[:, None]
    tpr = (same & truth).sum() / truth.sum()
    tnr = (~same & ~truth).sum() / (~truth).sum()
    return ((tpr + tnr) / 2).item()


train_p, train_o = scenes(900, 1)
test_p, test_o = scenes(100, 2)
model = InstanceEmbedder()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
iters, bs = 250, 20
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, iters)

for it in range(1, iters + 1):
    idx = torch.randint(0, len(train_p), (bs,))
    loss = discriminative_loss(model(train_p[idx]), train_o[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if it % 50 == 0 or it == 1:
        print(f"iter {it:4d} loss {loss.item():.4f} pair acc {pair_accuracy(model, test_p, test_o):.4f}")

print(f"final balanced pair accuracy {pair_accuracy(model, test_p, test_o):.4f}")
