import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(2)
MOD, LEN, DIM, HEADS, DEPTH = 19, 16, 64, 4, 2
BLANK, SKIP = MOD, -100


def progressions(n):
    a, d = torch.randint(MOD, (n, 1)), torch.randint(1, 4, (n, 1))
    return (a + d * torch.arange(LEN)) % MOD


def hide(seq, rate):
    gone = torch.rand(seq.shape) < rate
    dice = torch.rand(seq.shape)
    shown = torch.where(gone & (dice < 0.8), BLANK, seq)
    shown = torch.where(gone & (dice > 0.9), torch.randint(MOD, seq.shape), shown)
    return shown, torch.where(gone, seq, SKIP)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.a, self.b = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.mlp[2].weight)

    def forward(self, x):
        q, k, v = self.qkv(self.a(x)).unflatten(-1, (3, HEADS, -1)).unbind(-3)
        s = torch.einsum("bihd,bjhd->bijh", q, k) * (DIM // HEADS) ** -0.5
        x = x + self.out(torch.einsum("bijh,bjhd->bihd", s.softmax(2), v).flatten(2))
        return x + self.mlp(self.b(x))


class Infill(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(MOD + 1, DIM) * DIM ** -0.5)
        self.where = nn.Parameter(torch.randn(LEN, DIM) * DIM ** -0.5)
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.final = nn.LayerNorm(DIM)

    def forward(self, s):
        x = self.layers(self.table[s] + self.where)
        return F.log_softmax(self.final(x) @ self.table[:MOD].T, dim=-1)


net = Infill()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.02)
TOTAL = 320
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=TOTAL, pct_start=0.08)
for step in range(TOTAL):
    shown, want = hide(progressions(64), 0.25)
    logp = net(shown)
    loss = F.cross_entropy(logp.flatten(0, 1), want.flatten(), ignore_index=SKIP, reduction="sum")
    loss = loss / (want != SKIP).sum()
    for p in net.parameters():
        p.grad = None
    loss.backward()
    opt.step()
    sched.step()
    if step % 32 == 0 or step == TOTAL - 1:
        print(f"{step:3d} infill loss {loss.item():.4f}", flush=True)

net.train(False)
with torch.no_grad():
    shown, want = hide(progressions(500), 0.25)
    logp = net(shown)
    keep = want != SKIP
    print("fresh: loss %.4f acc %.3f" % (-logp[keep].gather(1, want[keep][:, None]).mean(),
                                         (logp[keep].argmax(-1) == want[keep]).float().mean()))
