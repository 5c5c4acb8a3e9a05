import math
import time
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)
T, D, H, L, K = 32, 48, 4, 2, 3
MICRO, ACC, UPDATES = 16, 2, 260


def series(n):
    r = torch.zeros(n, T + 1)
    vol = torch.full((n,), 0.5)
    state = (torch.rand(n) < 0.5).float()
    for t in range(1, T + 1):
        flip = (torch.rand(n) < 0.04).float()
        state = (state - flip).abs()
        drift = torch.where(state > 0, 0.85 * r[:, t - 1] + 0.3, -0.85 * r[:, t - 1])
        shock = torch.randn(n) * vol
        jump = (torch.rand(n) < 0.06).float() * 2.5
        r[:, t] = (drift + shock + jump).clamp(-6, 6)
        vol = 0.12 + 0.6 * vol + 0.15 * shock.abs()
    return r[:, :-1], r[:, 1:]


def weight(i, o, s=1.0):
    return torch.nn.Parameter(torch.randn(i, o) * s / math.sqrt(i))


names = {"inp": weight(4, D), "pos": torch.nn.Parameter(0.1 * torch.randn(T, D)), "out": weight(D, 3 * K, 0.3),
         "ob": torch.nn.Parameter(torch.cat([torch.zeros(K), torch.linspace(-1, 1, K), torch.zeros(K)]))}
for l in range(L):
    names.update({f"qkv{l}": weight(D, 3 * D), f"o{l}": weight(D, D, 0.5),
                  f"u{l}": weight(D, 4 * D), f"d{l}": weight(4 * D, D, 0.5)})
mask = torch.full((T, T), float("-inf")).triu(1)


def model(x):
    B = x.shape[0]
    f = torch.stack([x, x.abs(), x.tanh(), torch.ones_like(x)], -1)
    h = f @ names["inp"] + names["pos"]
    for l in range(L):
        q, k, v = (F.layer_norm(h, (D,)) @ names[f"qkv{l}"]).view(B, T, 3, H, -1).unbind(2)
        w = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(D // H) + mask
        h = h + torch.einsum("bhij,bjhc->bihc", w.softmax(-1), v).flatten(2) @ names[f"o{l}"]
        h = h + F.gelu(F.layer_norm(h, (D,)) @ names[f"u{l}"]) @ names[f"d{l}"]
    return F.layer_norm(h, (D,)) @ names["out"] + names["ob"]


def mixture_nll(out, y):
    pi, mu, ls = out.chunk(3, -1)
    ls = ls.clamp(-4, 3)
    e = (y[..., None] - mu) * torch.exp(-ls)
    comp = F.log_softmax(pi, -1) - 0.5 * e * e - ls - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(comp, -1).mean()


ps = list(names.values())
acc = [torch.zeros_like(p) for p in ps]
mu = [torch.zeros_like(p) for p in ps]
nu = [torch.zeros_like(p) for p in ps]


@torch.no_grad()
def adamw(g, lr, n):
    torch._foreach_lerp_(mu, g, 0.1)
    torch._foreach_mul_(nu, 0.98)
    torch._foreach_addcmul_(nu, g, g, 0.02)
    den = torch._foreach_sqrt(torch._foreach_div(nu, 1 - 0.98 ** n))
    torch._foreach_add_(den, 1e-8)
    torch._foreach_mul_(ps, 1 - 0.01 * lr)
    torch._foreach_addcdiv_(ps, mu, den, -lr / (1 - 0.9 ** n))


began, shown = time.time(), 0.0
for n in range(1, UPDATES + 1):
    for _ in range(ACC):
        loss = mixture_nll(model((b := series(MICRO))[0]), b[1])
        torch._foreach_add_(acc, torch.autograd.grad(loss, ps))
        shown += loss.item() / ACC
    g = torch._foreach_div(acc, ACC)
    adamw(g, 2e-3 * min(1, n / 20) * (1.05 - n / UPDATES), n)
    torch._foreach_zero_(g)
    if n % 10 == 0:
        print(f"update {n:4d}  nll {shown / 10:.4f}  {time.time() - began:.1f}s")
        shown = 0.0
with torch.no_grad():
    x, y = series(300)
    print(f"fresh series nll {mixture_nll(model(x), y):.4f}")
