import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Setup:
    features: int = 5
    context: int = 40
    queries: int = 20
    dim: int = 64
    heads: int = 4
    depth: int = 3
    tasks: int = 16
    steps: int = 300
    lr: float = 1e-3


def draw_tasks(s, n, g):
    """Random datasets: linear or radial rule on a random number of informative columns."""
    rows = s.context + s.queries
    used = torch.randint(1, 4, (n, 1), generator=g)
    col = (torch.arange(s.features)[None] < used).float()[:, None]
    x = torch.randn(n, rows, s.features, generator=g) * col
    w = torch.randn(n, s.features, 1, generator=g)
    lin = (x @ w).squeeze(-1)
    centre = 0.7 * torch.randn(n, 1, s.features, generator=g)
    rad = -((x - centre * col) ** 2).sum(-1)
    score = torch.where(torch.rand(n, 1, generator=g) < 0.7, lin, rad)
    y = (score > score.median(1, keepdim=True).values).long()
    swap = torch.rand(n, 1, generator=g) < 0.5
    y = torch.where(swap, 1 - y, y)
    x = x * (s.features / used.float()).sqrt()[..., None]
    return x, y


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.att = nn.MultiheadAttention(d, h, batch_first=True, bias=False)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, n_ctx):
        h = self.n1(x)
        ctx = h[:, :n_ctx]
        x = x + self.att(h, ctx, ctx, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class PFN(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.row = nn.Linear(s.features, s.dim)
        self.lab = nn.Embedding(2, s.dim)
        self.layers = nn.ModuleList(Layer(s.dim, s.heads) for _ in range(s.depth))
        self.out = nn.Sequential(nn.LayerNorm(s.dim), nn.Linear(s.dim, 2))

    def forward(self, x, y_ctx):
        n = y_ctx.shape[1]
        h = self.row(x)
        h = torch.cat([h[:, :n] + self.lab(y_ctx), h[:, n:]], 1)
        for l in self.layers:
            h = l(h, n)
        return self.out(h[:, n:])


def nearest(x, y, n, k=5):
    d = torch.cdist(x[:, n:], x[:, :n]).topk(k, largest=False).indices
    votes = torch.gather(y[:, None, :n].expand(-1, d.shape[1], -1), 2, d)
    return (votes.float().mean(-1) > 0.5).long()


def run(s):
    torch.manual_seed(40)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(41)
    net = PFN(s)
    opt = torch.optim.Adam(net.parameters(), lr=s.lr)
    t0, avg = time.time(), None
    for step in range(s.steps):
        opt.param_groups[0]["lr"] = s.lr * min(1.0, (step + 1) / 50)
        x, y = draw_tasks(s, s.tasks, g)
        n = int(torch.randint(s.context // 2, s.context + 1, (1,), generator=g))
        logits = net(x, y[:, :n])
        loss = F.cross_entropy(logits.flatten(0, 1), y[:, n:].flatten())
        for p in net.parameters():
            p.grad = None
        loss.backward()
        opt.step()
        avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
        if step % 30 == 0 or step == s.steps - 1:
            print(f"step {step:3d} loss {loss.item():.4f} smoothed {avg:.4f} {time.time() - t0:.1f}s")
    x, y = draw_tasks(s, 300, torch.Generator().manual_seed(999))
    with torch.no_grad():
        acc = (net(x, y[:, :s.context]).argmax(-1) == y[:, s.context:]).float().mean()
    knn = (nearest(x, y, s.context) == y[:, s.context:]).float().mean()
    print(f"new tasks: accuracy {acc:.3f} (5-nn {knn:.3f})")


if __name__ == "__main__":
    run(Setup())
