import math

import torch

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

N_TRAIN, N_TEST, D = 12000, 3000, 300
LAM = 1e-2
STEPS = 240


def make_data():
    mix = torch.randn(D, D) / math.sqrt(D) + 0.5 * torch.eye(D)
    scale = torch.exp(torch.randn(D))
    shift = 3.0 * torch.randn(D)
    X = torch.randn(N_TRAIN + N_TEST, D) @ mix * scale + shift
    w = torch.randn(D) * (torch.rand(D) < 0.3) / scale
    y = X @ w + 7.0 + 2.0 * torch.randn(len(X))
    return X[:N_TRAIN], y[:N_TRAIN], X[N_TRAIN:], y[N_TRAIN:]


Xtr, ytr, Xte, yte = make_data()
mu, sd = Xtr.mean(0), Xtr.std(0)
Xtr, Xte = (Xtr - mu) / sd, (Xte - mu) / sd

b_star = ytr.mean()
gram = Xtr.T @ Xtr / N_TRAIN
w_star = torch.linalg.solve(gram + LAM * torch.eye(D), Xtr.T @ (ytr - b_star) / N_TRAIN)


def objective(w, b):
    r = ytr - Xtr @ w - b
    return 0.5 * r.square().mean() + 0.5 * LAM * w.square().sum()


eig = torch.linalg.eigvalsh(gram)
L = max(eig[-1].item(), 1.0) + LAM
mu_c = min(eig[0].item() + LAM, 1.0)
kappa = L / mu_c
momentum = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)

w = torch.zeros(D, requires_grad=True)
b = torch.zeros((), requires_grad=True)
opt = torch.optim.SGD([w, b], lr=1.0 / L, momentum=momentum, nesterov=True)

best = objective(w_star, b_star).item()
print(f"L={L:.2f} kappa={kappa:.0f} momentum={momentum:.3f} optimum={best:.6f}")
for step in range(STEPS):
    opt.zero_grad()
    loss = objective(w, b)
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:4d}  loss {loss.item():.6f}  above optimum {loss.item() - best:.2e}")

with torch.no_grad():
    rel = (w - w_star).norm() / w_star.norm()
    pred = Xte @ w + b
    r2 = 1 - (yte - pred).square().sum() / (yte - yte.mean()).square().sum()
print(f"relative distance to closed form {rel:.2e}   test R2 {r2:.4f}")
assert rel < 1e-2
