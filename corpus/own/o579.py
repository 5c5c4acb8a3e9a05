import copy, torch
import torch.nn as nn, torch.nn.functional as F

torch.manual_seed(31)
COLS, CLASSES, DIM = 10, 4, 48
centres = 1.6 * torch.randn(CLASSES, 3, COLS)


def rows(n):
    y = torch.randint(CLASSES, (n,))
    return centres[y, torch.randint(3, (n,))] + 0.6 * torch.randn(n, COLS), y


xl, yl = rows(400)
xu, _ = rows(8000)
xt, yt = rows(2000)


class RowFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(COLS, DIM) * 0.5)
        self.shift = nn.Parameter(torch.randn(COLS, DIM) * 0.5)
        self.agg = nn.Parameter(torch.zeros(1, 1, DIM))
        self.enc = nn.ModuleList(nn.TransformerEncoderLayer(DIM, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
                                 for _ in range(2))
        self.proj = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM))
        self.cls = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        t = torch.cat([self.agg.expand(len(x), -1, -1), x[..., None] * self.scale + self.shift], 1)
        for layer in self.enc:
            t = layer(t)
        z = self.proj(t[:, 0])
        return z, self.cls(F.gelu(z))


student = RowFormer()
slow = copy.deepcopy(student)
for p in slow.parameters():
    p.requires_grad = False
predictor = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
opt = torch.optim.Adam([*student.parameters(), *predictor.parameters()], lr=1e-3)


def view(x):
    keep = (torch.rand_like(x) > 0.1).float()
    return x * keep + 0.1 * torch.randn_like(x)


STEPS, BL, BU = 240, 24, 40
for step in range(STEPS):
    i, j = torch.randint(len(xl), (BL,)), torch.randint(len(xu), (BU,))
    with torch.no_grad():
        target, _ = slow(view(xu[j]))
    z, _ = student(view(xu[j]))
    agree = -F.cosine_similarity(predictor(z), target, dim=-1).mean()
    _, out = student(xl[i])
    ce = F.cross_entropy(out, yl[i])
    loss = ce + 0.5 * agree
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        m = min(0.98, step / (step + 10))
        for a, b in zip(slow.parameters(), student.parameters()):
            a.lerp_(b, 1 - m)
    if step % 24 == 0 or step == STEPS - 1:
        print(f"step {step:3d} total {loss.item():+.4f} supervised {ce.item():.4f} agreement {agree.item():+.4f}", flush=True)

slow.eval()
with torch.no_grad():
    out = slow(xt)[1]
print(f"slow copy on test rows: ce {F.cross_entropy(out, yt).item():.4f} acc {(out.argmax(1) == yt).float().mean().item():.3f}")
