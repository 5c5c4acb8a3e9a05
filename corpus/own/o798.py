import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)
rng = np.random.default_rng(8)
V, L, H, D, NH = 12, 48, 8, 48, 4


def simulate(n):
    lead = np.arange(V) // 3
    x = np.zeros((n, V))
    phase = rng.uniform(0, 6.28, 4)
    freq = np.array([1 / 17, 1 / 23, 1 / 31, 1 / 13])
    drive = np.zeros((n, 4))
    level = np.zeros(4)
    for t in range(n):
        level = 0.97 * level + 0.25 * rng.standard_normal(4)
        drive[t] = level + np.sin(2 * np.pi * freq * t + phase)
    for v in range(V):
        lag = 8 * (v % 3)
        x[lag:, v] = drive[: n - lag, lead[v]] * (1 + 0.3 * (v % 3))
    x += 0.05 * rng.standard_normal(x.shape)
    return torch.tensor(x * np.linspace(1, 30, V) + np.linspace(-50, 80, V), dtype=torch.float32)


series = simulate(3200)


def init():
    g = lambda *s: (torch.randn(*s) / s[0] ** 0.5).requires_grad_()
    p = {"in.w": g(L, D), "in.b": torch.zeros(D, requires_grad=True)}
    for i in range(2):
        p.update({f"{i}.q": g(D, D), f"{i}.k": g(D, D), f"{i}.v": g(D, D), f"{i}.o": g(D, D),
                  f"{i}.u": g(D, 2 * D), f"{i}.d": g(2 * D, D)})
    p["out.w"] = (0.02 * torch.randn(D, H)).requires_grad_()
    p["out.b"] = torch.zeros(H, requires_grad=True)
    return p


def norm(x):
    return F.layer_norm(x, x.shape[-1:])


def forward(p, x):
    mu, sd = x.mean(1, keepdim=True).detach(), x.std(1, keepdim=True).detach() + 1e-5
    z = torch.einsum("blv,ld->bvd", (x - mu) / sd, p["in.w"]) + p["in.b"]
    for i in range(2):
        n = norm(z)
        q, k, v = (torch.einsum("bvd,de->bve", n, p[f"{i}.{c}"]).unflatten(-1, (NH, -1)) for c in "qkv")
        a = torch.einsum("bihc,bjhc->bhij", q, k).mul((D // NH) ** -0.5).softmax(-1)
        z = z + torch.einsum("bhij,bjhc->bihc", a, v).flatten(2) @ p[f"{i}.o"]
        z = z + F.gelu(norm(z) @ p[f"{i}.u"]) @ p[f"{i}.d"]
    y = (norm(z) @ p["out.w"] + p["out.b"]).transpose(1, 2)
    return y, mu, sd


def windows(lo, hi, n):
    i = torch.randint(lo, hi - L - H, (n,))
    w = torch.stack([series[j:j + L + H] for j in i.tolist()])
    return w[:, :L], w[:, L:]


params = init()
opt = torch.optim.Adam(params.values(), lr=2e-3)
for step in range(600):
    x, y = windows(0, 2600, 32)
    pred, mu, sd = forward(params, x)
    loss = (pred - (y - mu) / sd).pow(2).mean()
    grads = torch.autograd.grad(loss, list(params.values()))
    for t, g in zip(params.values(), grads):
        t.grad = g
    opt.step()
    if step % 60 == 0 or step == 599:
        with torch.no_grad():
            torch.manual_seed(1000)
            xv, yv = windows(2600, 3200, 128)
            pv, mu, sd = forward(params, xv)
            scale = series[:2600].std(0)
            nmae = ((pv * sd + mu - yv).abs() / scale).mean()
            naive = ((xv[:, -1:] - yv).abs() / scale).mean()
            torch.manual_seed(step)
        print(f"step {step:3d} train {loss.item():.4f} val nMAE {nmae:.4f} (last value {naive:.4f})")
