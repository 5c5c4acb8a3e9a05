import math, time
import torch
from torch.func import functional_call, grad_and_value

torch.set_num_threads(1)
torch.manual_seed(17)
CELLS, D, H, L = 32, 64, 4, 3


def tick(s, rule=30):
    table = torch.tensor([(rule >> i) & 1 for i in range(8)])
    return table[4 * s.roll(1, 1) + 2 * s + s.roll(-1, 1)]


def batch(n):
    x = (torch.rand(n, CELLS) < 0.5).long()
    return x, tick(tick(x))


def rope(x):
    n, d = x.shape[1], x.shape[-1] // 2
    freq = 2 * math.pi / CELLS * torch.arange(1, d + 1)
    ang = torch.arange(n)[:, None] * freq[None]
    c, s = ang.cos()[None, :, None], ang.sin()[None, :, None]
    a, b = x[..., :d], x[..., d:]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


class Mixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
        self.wq = torch.nn.Parameter(torch.randn(D, H, D // H) / math.sqrt(D))
        self.wk = torch.nn.Parameter(torch.randn(D, H, D // H) / math.sqrt(D))
        self.wv = torch.nn.Parameter(torch.randn(D, H, D // H) / math.sqrt(D))
        self.wo = torch.nn.Parameter(torch.randn(H, D // H, D) / math.sqrt(D))
        self.qb = torch.nn.Parameter(torch.randn(H, D // H))
        self.kb = torch.nn.Parameter(torch.randn(H, D // H))
        self.up, self.down = torch.nn.Linear(D, 4 * D), torch.nn.Linear(4 * D, D)

    def forward(self, x):
        h = self.n1(x)
        q = torch.einsum("btd,dhe->bthe", h, self.wq) + self.qb
        k = torch.einsum("btd,dhe->bthe", h, self.wk) + self.kb
        v = torch.einsum("btd,dhe->bthe", h, self.wv)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        q, k = rope(q), rope(k)
        w = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D // H), -1)
        x = x + torch.einsum("bhte,hed->btd", w @ v, self.wo)
        return x + self.down(torch.nn.functional.gelu(self.up(self.n2(x))))


class Automaton(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.Embedding(2, D)
        self.layers = torch.nn.ModuleList([Mixer() for _ in range(L)])
        self.norm = torch.nn.LayerNorm(D)
        self.out = torch.nn.Linear(D, 1)

    def forward(self, s):
        x = self.cell(s)
        for f in self.layers:
            x = f(x)
        return self.out(self.norm(x)).squeeze(-1)


net = Automaton()
params = {k: v.detach().clone() for k, v in net.named_parameters()}


def objective(p, x, y):
    z = functional_call(net, p, (x,))
    yf = y.float()
    bce = z.clamp(min=0) - z * yf + torch.log1p(torch.exp(-z.abs()))
    return bce.mean()


step_fn = grad_and_value(objective)
m = {k: torch.zeros_like(v) for k, v in params.items()}
s = {k: torch.zeros_like(v) for k, v in params.items()}
TOTAL, PEAK = 160, 2e-3
t0 = time.time()
for i in range(1, TOTAL + 1):
    x, y = batch(40)
    grads, loss = step_fn(params, x, y)
    lr = PEAK * min(i / 50, (TOTAL - i + 1) / (TOTAL * 0.6), 1.0)
    for k, gr in grads.items():
        m[k].mul_(0.9).add_(gr, alpha=0.1)
        s[k].mul_(0.98).addcmul_(gr, gr, value=0.02)
        params[k].sub_(lr * (m[k] / (1 - 0.9 ** i)) / ((s[k] / (1 - 0.98 ** i)).sqrt() + 1e-8))
    if i % 8 == 0:
        print(f"[{i:4d}/{TOTAL}] loss={loss.item():.4f} lr={lr:.2e} ({time.time()-t0:.1f}s)")

x, y = batch(256)
with torch.no_grad():
    z = functional_call(net, params, (x,))
print("cells right:", ((z > 0).long() == y).float().mean().item())
