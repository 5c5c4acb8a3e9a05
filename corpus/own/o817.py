import math, torch
from torch import nn
from torch.func import functional_call, vmap, grad

torch.manual_seed(13)
torch.set_num_threads(1)
N, D, K = 3000, 20, 4
W = torch.randn(D, K)


def make(n):
    x = torch.randn(n, D)
    y = (x @ W + 0.7 * torch.sin(2 * x) @ W.flip(0)).argmax(1)
    return x, y


x, y = make(N)
xv, yv = make(1500)
net = nn.Sequential(nn.Linear(D, 64), nn.Tanh(), nn.Linear(64, K))
params = {k: v.detach().clone() for k, v in net.named_parameters()}
momentum = {k: torch.zeros_like(v) for k, v in params.items()}


def sample_loss(p, xi, yi):
    return nn.functional.cross_entropy(functional_call(net, p, (xi[None],)), yi[None])


per_sample = vmap(grad(sample_loss), in_dims=(None, 0, 0))
C, SIGMA, Q, LR, STEPS = 1.0, 1.1, 0.06, 0.5, 250


def rdp_epsilon(steps, q, sigma, delta=1e-4):
    best = float("inf")
    for a in range(2, 64):
        terms = [math.lgamma(a + 1) - math.lgamma(j + 1) - math.lgamma(a - j + 1)
                 + j * math.log(q) + (a - j) * math.log(1 - q) + (j * j - j) / (2 * sigma ** 2) for j in range(a + 1)]
        m = max(terms)
        r = (m + math.log(sum(math.exp(t - m) for t in terms))) / (a - 1)
        best = min(best, steps * r + math.log(1 / delta) / (a - 1))
    return best


@torch.no_grad()
def evaluate(p):
    o = functional_call(net, p, (xv,))
    return nn.functional.cross_entropy(o, yv).item(), (o.argmax(1) == yv).float().mean().item()


print("majority class rate", (torch.bincount(yv).max() / len(yv)).item())
print("start: loss %.3f acc %.3f" % evaluate(params))
for step in range(STEPS):
    pick = torch.rand(N) < Q
    g = per_sample(params, x[pick], y[pick])
    norms = torch.stack([v.flatten(1).norm(dim=1) for v in g.values()]).norm(dim=0)
    scale = (C / (norms + 1e-6)).clamp(max=1.0)
    lr = LR * (1 - step / STEPS)
    for k, v in g.items():
        s = torch.einsum("b...,b->...", v, scale) + SIGMA * C * torch.randn_like(params[k])
        momentum[k] = 0.8 * momentum[k] + s / (Q * N)
        params[k] = params[k] - lr * momentum[k]
    if step % 25 == 0 or step == STEPS - 1:
        l, a = evaluate(params)
        print(f"step {step:3d} n {int(pick.sum())} clipped {float((norms > C).float().mean()):.2f} "
              f"val loss {l:.3f} acc {a:.3f} eps {rdp_epsilon(step + 1, Q, SIGMA):.2f}")
