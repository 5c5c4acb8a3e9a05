import copy
import math
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

NPTS, NCLS = (40, 5)


def clouds(n, g):
    y = torch.randint(NCLS, (n,), generator=g)
    u = torch.rand(n, NPTS, 3, generator=g)
    z = torch.randn(n, NPTS, 3, generator=g)
    th, ph = (2 * math.pi * u[..., 0], 2 * math.pi * u[..., 1])
    sphere = F.normalize(z, dim=-1)
    cube = u * 2 - 1
    cube = cube / cube.abs().amax(-1, keepdim=True) * 0.75
    cyl = torch.stack([0.6 * th.cos(), 0.6 * th.sin(), 2 * u[..., 2] - 1], -1)
    ring = 0.75 + 0.25 * ph.cos()
    torus = torch.stack([ring * th.cos(), ring * th.sin(), 0.25 * ph.sin()], -1)
    side = (u[..., 2:] > 0.5).float() * 2 - 1
    blobs = 0.25 * z + side * torch.tensor([0.0, 0.0, 0.7])
    pts = torch.stack([sphere, cube, cyl, torus, blobs], 1)[torch.arange(n), y]
    q, _ = torch.linalg.qr(torch.randn(n, 3, 3, generator=g))
    scale = 0.8 + 0.4 * torch.rand(n, 1, 1, generator=g)
    return (pts @ q * scale, y)


def jitter(x, g):
    x = x + 0.04 * torch.randn(x.shape, generator=g)
    q, _ = torch.linalg.qr(torch.randn(len(x), 3, 3, generator=g))
    return x @ q


class MAB(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.att = nn.MultiheadAttention(d, heads, batch_first=True)
        self.n1, self.n2 = (nn.LayerNorm(d), nn.LayerNorm(d))
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, q, kv):
        h = self.n1(q + self.att(q, kv, kv, need_weights=False)[0])
        return self.n2(h + self.ff(h))


class SetNet(nn.Module):
    def __init__(self, d=48, inducing=8):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 1.6, 12))
        self.inp = nn.Linear(3 + 12, d)
        self.points = nn.Parameter(torch.randn(1, inducing, d) * 0.5)
        self.squeeze, self.expand = (MAB(d), MAB(d))
        self.seed = nn.Parameter(torch.randn(1, 1, d) * 0.5)
        self.pool = MAB(d)
        self.cls = nn.Linear(d, NCLS)

    def forward(self, pts):
        r = pts.norm(dim=-1, keepdim=True)
        x = self.inp(torch.cat([pts, torch.exp(-(((r - self.centres) / 0.15) ** 2))], -1))
        n = len(pts)
        x = self.expand(x, self.squeeze(self.points.expand(n, -1, -1), x))
        return self.cls(self.pool(self.seed.expand(n, -1, -1), x)[:, 0])


def ramp(step, length):
    t = min(1.0, step / length)
    return math.exp(-5 * (1 - t) ** 2)


@torch.no_grad()
def update_teacher(teacher, student, step):
    keep = min(1 - 1 / (step + 1), 0.98)
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.mul_(keep).add_(s, alpha=1 - keep)


@torch.no_grad()
def accuracy(net, x, y):
    return (net(x).argmax(-1) == y).float().mean().item()


torch.manual_seed(5)
g = torch.Generator().manual_seed(6)
lab_x, lab_y = clouds(400, g)
pool_x, _ = clouds(6000, g)
test_x, test_y = clouds(1000, torch.Generator().manual_seed(60))
student = SetNet()
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
opt = torch.optim.AdamW(student.parameters(), lr=0.0015, weight_decay=0.05)
STEPS, W_MAX = (380, 8.0)
start = time.time()
for step in range(STEPS):
    for group in opt.param_groups:
        group["lr"] = 0.0015 * min(1.0, (step + 1) / 25) * (0.1 + 0.9 * (1 - step / STEPS))
    i = torch.randint(len(lab_x), (32,), generator=g)
    j = torch.randint(len(pool_x), (48,), generator=g)
    mixed = torch.cat([lab_x[i], pool_x[j]])
    out = student(jitter(mixed, g))
    with torch.no_grad():
        goal = teacher(jitter(mixed, g)).softmax(-1)
    ce = F.cross_entropy(out[:32], lab_y[i])
    consistency = (out.softmax(-1) - goal).pow(2).sum(-1).mean()
    w = W_MAX * ramp(step, 230)
    loss = ce + w * consistency
    opt.zero_grad()
    loss.backward()
    opt.step()
    update_teacher(teacher, student, step)
    if step % 50 == 0 or step == STEPS - 1:
        print(
            f"{step:3d} loss {loss.item():.4f} = ce {ce.item():.4f} + {w:.2f} * {consistency.item():.4f}   {time.time() - start:.1f}s"
        )
print(
    f"test accuracy: student {accuracy(student, test_x, test_y):.3f}, teacher {accuracy(teacher, test_x, test_y):.3f}, chance {1 / NCLS:.3f}"
)
