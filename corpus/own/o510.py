import numpy as np
import torch


torch.manual_seed(1); rs = np.random.RandomState(1)
torch.set_default_dtype(torch.float64)
N, D, C = 6000, 120, 10
scales = np.exp(rs.uniform(-2, 2, D))
X = rs.randn(N, D) * scales
W = rs.randn(D, C) / scales[:, None] * 0.4
y = np.array([rs.choice(C, p=p) for p in np.exp(X @ W) / np.exp(X @ W).sum(1, keepdims=True)])
X, y = torch.from_numpy(X), torch.from_numpy(y)
Xtr, ytr, Xte, yte = X[:5000], y[:5000], X[5000:], y[5000:]

w = torch.zeros(D, C, requires_grad=True)
b = torch.zeros(C, requires_grad=True)
lam = 1e-4
opt = torch.optim.LBFGS([w, b], lr=1.0, max_iter=2, history_size=10, line_search_fn="strong_wolfe")
evals = 0


def closure():
    global evals
    evals += 1
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(Xtr @ w + b, ytr) + lam * (w ** 2).sum()
    loss.backward()
    return loss


for it in range(100):
    loss = opt.step(closure)
    if it % 8 == 0 or it == 99:
        with torch.no_grad():
            lg = Xte @ w + b
            te = torch.nn.functional.cross_entropy(lg, yte).item()
            acc = (lg.argmax(1) == yte).double().mean().item()
        print(f"lbfgs iter {it:3d} objective {loss.item():.6f} test nll {te:.4f} acc {acc:.3f} |g| {w.grad.norm().item():.2e} evals {evals}")


t = torch.linspace(-1, 1, 400)
target = torch.sin(4 * t) + 0.1 * torch.randn(400)
phi = torch.stack([t ** k for k in range(9)], 1)
theta = torch.zeros(9, requires_grad=True)


def ridge(th):
    return ((phi @ th - target) ** 2).mean() + 1e-6 * (th ** 2).sum()


for k in range(4):
    l = ridge(theta)
    (g,) = torch.autograd.grad(l, theta)
    Hm = torch.autograd.functional.hessian(ridge, theta.detach())
    print(f"newton step {k} loss {l.item():.8f} |g| {g.norm().item():.2e}")
    with torch.no_grad():
        theta -= torch.linalg.solve(Hm, g)
