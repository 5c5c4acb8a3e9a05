import math
import time

import numpy as np
import torch

rng = np.random.default_rng(11)
torch.manual_seed(11)

N, D = 20000, 60
X = rng.normal(size=(N, D)).astype("float32")
X[:, :10] *= 3.0
w_true = rng.normal(size=D).astype("float32")
b_true = 4.0
y = X @ w_true + b_true + 0.5 * rng.standard_t(1.5, size=N)
bad = rng.random(N) < 0.05
y[bad] += rng.normal(size=bad.sum()) * 4 * np.abs(X @ w_true).mean()
y = y.astype("float32")

n_tr = 16000

mu, sd = X[:n_tr].mean(0), X[:n_tr].std(0)
X = (X - mu) / sd
w_ref = w_true * sd
Xtr, ytr = torch.from_numpy(X[:n_tr]), torch.from_numpy(y[:n_tr])
Xte, yte = torch.from_numpy(X[n_tr:]), torch.from_numpy(y[n_tr:])

w = torch.zeros(D, requires_grad=True)
b = torch.zeros((), requires_grad=True)
vel = [torch.zeros_like(w), torch.zeros_like(b)]


def huber(r, delta=1.0):
    a = r.abs()
    return torch.where(a <= delta, 0.5 * r * r, delta * (a - 0.5 * delta)).mean()


def medae(X, y):
    with torch.no_grad():
        return (X @ w + b - y).abs().median().item()


batch, epochs, clip = 256, 40, 0.5
steps_per_epoch = n_tr // batch
total = epochs * steps_per_epoch
step = 0
n_clipped = 0
t0 = time.time()
for ep in range(epochs):
    perm = torch.randperm(n_tr)
    tot = 0.0
    for k in range(steps_per_epoch):
        idx = perm[k * batch:(k + 1) * batch]
        loss = huber(Xtr[idx] @ w + b - ytr[idx])
        g = torch.autograd.grad(loss, [w, b])
        norm = math.sqrt(sum(float(x.pow(2).sum()) for x in g))
        scale = min(1.0, clip / (norm + 1e-12))
        n_clipped += scale < 1
        lr = 0.2 * 0.5 * (1 + math.cos(math.pi * step / total))
        with torch.no_grad():
            for p, v, gg in zip((w, b), vel, g):
                v.mul_(0.9).add_(gg * scale)
                p.sub_(lr * v)
        tot += loss.item()
        step += 1
        if step <= 60 and step % 10 == 1:
            print(f"step {step} huber {loss.item():.3f}")
    if ep % 2 == 0 or ep == epochs - 1:
        err = (w.detach() - torch.from_numpy(w_ref)).norm() / np.linalg.norm(w_ref)
        print(f"epoch {ep:2d} huber {tot / steps_per_epoch:9.3f} "
              f"test median |err| {medae(Xte, yte):.4f} rel. weight err {err:.4f} clipped {n_clipped}/{step}")
print(f"done in {time.time() - t0:.1f}s")
