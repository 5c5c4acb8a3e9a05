import torch

torch.manual_seed(17)
torch.set_default_dtype(torch.float64)

N, NT, D = 16000, 4000, 60
X = torch.randn(N + NT, D)
X[:, 40:] = (X[:, 40:] > 0).double() - 0.5
exposure = torch.exp(0.8 * torch.randn(N + NT))
beta_true = torch.randn(D) * 0.12
intercept_true, alpha_true = 0.7, 0.6
mu_true = exposure * torch.exp(intercept_true + X @ beta_true)
shape = 1.0 / alpha_true
lam = torch.distributions.Gamma(torch.full_like(mu_true, shape), shape / mu_true).sample()
y = torch.poisson(lam)
offset = exposure.log()

tr, te = slice(0, N), slice(N, N + NT)


def poisson_nll(eta, y):
    return (eta.exp() - y * eta + torch.lgamma(y + 1)).mean()


def nb_nll(eta, y, log_alpha):
    r = torch.exp(-log_alpha)
    log_r_mu = torch.logaddexp(-log_alpha, eta)
    ll = (torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
          + r * (-log_alpha - log_r_mu) + y * (eta - log_r_mu))
    return -ll.mean()


def fit(nll, params, eta_fn, name, steps=220, batch=4000, lr=0.02):
    opt = torch.optim.Adam(params, lr=lr)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.985)
    for s in range(steps):
        idx = torch.randint(N, (batch,))
        loss = nll(eta_fn(idx), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 40 == 0 or s == steps - 1:
            with torch.no_grad():
                held = nll(eta_fn(te), y[te])
            print(f"{name:8s} step {s:4d} nll {loss.item():.4f} held-out {held.item():.4f}")


beta = torch.zeros(D, requires_grad=True)
b0 = (y[tr].sum() / exposure[tr].sum()).log().clone().requires_grad_(True)


def eta(sel):
    return offset[sel] + b0 + X[sel] @ beta


fit(poisson_nll, [beta, b0], eta, "poisson")
with torch.no_grad():
    mu = eta(tr).exp()
    pearson = ((y[tr] - mu).square() / mu).sum() / (N - D - 1)
    alpha0 = (((y[tr] - mu).square() - mu) / mu.square()).mean().clamp_min(0.05)
    held_poisson = poisson_nll(eta(te), y[te])
    err_poisson = (beta - beta_true).norm() / beta_true.norm()
print(f"Pearson dispersion {pearson:.2f} (1 for Poisson); moment alpha {alpha0:.3f}")

log_alpha = alpha0.log().clone().requires_grad_(True)
fit(lambda e, t: nb_nll(e, t, log_alpha), [beta, b0, log_alpha], eta, "negbin")
with torch.no_grad():
    err = (beta - beta_true).norm() / beta_true.norm()
    print(f"alpha {log_alpha.exp():.3f} (true {alpha_true})  intercept {b0:.3f} (true {intercept_true})")
    print(f"relative coefficient error: poisson {err_poisson:.3f}, negbin {err:.3f}")
    print(f"held-out nll per count: poisson fit {held_poisson:.4f}  negbin fit {nb_nll(eta(te), y[te], log_alpha):.4f}")
