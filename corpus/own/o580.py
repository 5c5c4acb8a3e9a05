import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
V, N, TABLES, D, H, LOOPS = 24, 24, 4, 64, 4, 3


follow = torch.stack([torch.randperm(V) for _ in range(TABLES)])


def strings(n):
    which, s = torch.randint(TABLES, (n,)), [torch.randint(V, (n,))]
    for _ in range(N):
        s.append(torch.where(torch.rand(n) < 0.1, torch.randint(V, (n,)), follow[which, s[-1]]))
    return torch.stack(s, 1)


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(N, D) * 0.1)
        self.step = nn.Parameter(torch.randn(LOOPS, D) * 0.1)
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.gate = nn.Linear(D, 3 * D)
        self.val = nn.Linear(D, 3 * D)
        self.down = nn.Linear(3 * D, D)
        self.n1, self.n2, self.n3 = nn.RMSNorm(D), nn.RMSNorm(D), nn.RMSNorm(D)
        self.head = nn.Linear(D, V)

    def attend(self, x):
        B, S, _ = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, H, D // H).permute(2, 0, 3, 1, 4)
        q, k = F.elu(2 * q) + 1, F.elu(2 * k) + 1
        s = torch.cumsum(k[..., :, None] * v[..., None, :], dim=2)
        z = torch.cumsum(k, dim=2)
        y = torch.einsum("bhnd,bhnde->bhne", q, s) / (torch.einsum("bhnd,bhnd->bhn", q, z)[..., None] + 1e-5)
        return self.out(y.transpose(1, 2).reshape(B, S, D))

    def forward(self, s):
        x = self.emb(s) + self.pos[: s.shape[1]]
        for i in range(LOOPS):
            x = x + self.attend(self.n1(x + self.step[i]))
            h = self.n2(x)
            x = x + self.down(F.silu(self.gate(h)) * self.val(h))
        return self.head(self.n3(x))


class SignMomentum:
    def __init__(self, params, b1=0.9, b2=0.98, wd=0.1):
        self.params = list(params)
        self.m = [torch.zeros_like(p) for p in self.params]
        self.b1, self.b2, self.wd = b1, b2, wd

    @torch.no_grad()
    def step(self, lr):
        for p, m in zip(self.params, self.m):
            d = torch.sign(self.b1 * m + (1 - self.b1) * p.grad)
            p.mul_(1 - lr * self.wd).sub_(lr * d)
            m.mul_(self.b2).add_(p.grad, alpha=1 - self.b2)
            p.grad = None


net = Looped()
opt = SignMomentum(net.parameters())
CYCLE, CYCLES, PEAK = 90, 3, 1e-3
for it in range(CYCLE * CYCLES):
    c, r = divmod(it, CYCLE)
    lr = PEAK * 0.8 ** c * (0.04 + 0.96 * 0.5 * (1 + math.cos(math.pi * r / CYCLE))) * min(1, (it + 1) / 15)
    s = strings(24)
    logits = net(s[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, V), s[:, 1:].reshape(-1))
    loss.backward()
    opt.step(lr)
    if it % 18 == 0 or r == CYCLE - 1:
        print(f"it {it:3d} lr {lr:.1e} loss {loss.item():.4f}", flush=True)

with torch.no_grad():
    s = strings(400)
    logits, want = net(s[:, :-1]), s[:, 1:]
    print("test loss %.4f accuracy %.3f" % (F.cross_entropy(logits.reshape(-1, V), want.reshape(-1)).item(),
                                                  (logits.argmax(-1) == want).float().mean().item()))
