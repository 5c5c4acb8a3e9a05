import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
torch.set_num_threads(1)
N_IN, HID, CLS = 32, 48, 6


def make(n):
    y = torch.randint(0, CLS, (n,))
    t = torch.arange(N_IN)[None] / N_IN
    f = 1.0 + 0.7 * y[:, None]
    ph = 6.2832 * torch.rand(n, 1)
    x = torch.sin(6.2832 * f * t + ph) * (0.7 + 0.6 * torch.rand(n, 1))
    return x + 0.4 * torch.randn(n, N_IN), y


def anderson(f, z, m=4, iters=18, lam=1e-4, tol=1e-3):
    b, d = z.shape
    X = torch.zeros(b, m, d)
    Fz = torch.zeros(b, m, d)
    X[:, 0], Fz[:, 0] = z, f(z)
    X[:, 1], Fz[:, 1] = Fz[:, 0], f(Fz[:, 0])
    H = torch.zeros(b, m + 1, m + 1)
    H[:, 0, 1:] = H[:, 1:, 0] = 1
    rhs = torch.zeros(b, m + 1, 1)
    rhs[:, 0] = 1
    res = None
    for k in range(2, iters):
        n = min(k, m)
        G = Fz[:, :n] - X[:, :n]
        H[:, 1:n + 1, 1:n + 1] = G @ G.transpose(1, 2) + lam * torch.eye(n)
        alpha = torch.linalg.solve(H[:, :n + 1, :n + 1], rhs[:, :n + 1])[:, 1:n + 1]
        X[:, k % m] = (alpha.transpose(1, 2) @ Fz[:, :n]).squeeze(1)
        Fz[:, k % m] = f(X[:, k % m])
        res = (Fz[:, k % m] - X[:, k % m]).norm() / (1e-6 + Fz[:, k % m].norm())
        if res < tol:
            break
    return X[:, k % m], k, float(res)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(N_IN, HID)
        self.w = nn.Parameter(torch.randn(HID, HID) * 0.05)
        self.norm = nn.LayerNorm(HID)

    def forward(self, z, x):
        return torch.tanh(z @ self.w.T + self.norm(F.relu(self.inp(x))))


class DEQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.read = nn.Linear(HID, CLS)
        self.stats = (0, 0.0)

    def forward(self, x):
        with torch.no_grad():
            z, k, r = anderson(lambda s: self.cell(s, x), torch.zeros(len(x), HID))
        self.stats = (k, r)
        z = self.cell(z, x)
        if self.training:
            z0 = z.detach().requires_grad_()
            f0 = self.cell(z0, x)

            def hook(grad):
                g, _, _ = anderson(lambda y: torch.autograd.grad(f0, z0, y, retain_graph=True)[0] + grad, grad)
                return g
            z.register_hook(hook)
        return self.read(z)


model = DEQ()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
xt, yt = make(1500)


def evaluate():
    model.eval()
    with torch.no_grad():
        a = (model(xt).argmax(1) == yt).float().mean().item()
    model.train()
    return a


print(f"acc at init {evaluate():.3f}")
for step in range(260):
    x, y = make(64)
    loss = F.cross_entropy(model(x), y)
    k, r = model.stats
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0:
        print(f"{step:4d} loss {loss.item():.4f} solver {k} it, residual {r:.1e}")
print(f"acc {evaluate():.3f}")
