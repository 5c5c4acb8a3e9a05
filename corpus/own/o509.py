import math
import torch
from torch.func import grad_and_value

torch.manual_seed(66)
K, H = 6, 64


def init():
    def w(i, o, s=1.0):
        return torch.randn(i, o) * s / math.sqrt(i)
    return {
        "w1": w(1, H), "b1": torch.zeros(H),
        "w2": w(H, H), "b2": torch.zeros(H),
        "w_pi": w(H, K, 0.1), "b_pi": torch.zeros(K),
        "w_mu": w(H, K), "b_mu": torch.linspace(-1, 1, K),
        "w_ls": w(H, K, 0.1), "b_ls": torch.full((K,), -1.0),
    }


def net(p, x):
    h = torch.tanh(x @ p["w1"] + p["b1"])
    h = torch.tanh(h @ p["w2"] + p["b2"])
    return (torch.log_softmax(h @ p["w_pi"] + p["b_pi"], -1),
            h @ p["w_mu"] + p["b_mu"],
            (h @ p["w_ls"] + p["b_ls"]).clamp(min=-5))


def nll(p, x, y):
    lpi, mu, ls = net(p, x)
    comp = -0.5 * ((y - mu) / ls.exp()) ** 2 - ls - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(lpi + comp, -1).mean()


def data(n):
    t = torch.rand(n, 1) * 2 - 1
    x = t + 0.35 * torch.sin(2 * math.pi * t) + 0.04 * torch.randn(n, 1)
    return 2 * x, t


def tree(f, *ds):
    return {k: f(*(d[k] for d in ds)) for k in ds[0]}


params = init()
m = tree(torch.zeros_like, params)
v = tree(torch.zeros_like, params)
step_fn = grad_and_value(nll)
xv, yv = data(2000)
STEPS, LR = 1200, 4e-3
for t in range(1, STEPS + 1):
    x, y = data(200)
    g, loss = step_fn(params, x, y)
    gn = math.sqrt(sum(q.pow(2).sum().item() for q in g.values()))
    if gn > 2.0:
        g = tree(lambda q: q * (2.0 / gn), g)
    lr = LR * min(1, t / 50) * 0.5 * (1 + math.cos(math.pi * t / STEPS))
    m = tree(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = tree(lambda a, b: 0.99 * a + 0.01 * b * b, v, g)
    params = tree(lambda p, a, b: p - lr * (a / (1 - 0.9 ** t)) / ((b / (1 - 0.99 ** t)).sqrt() + 1e-8), params, m, v)
    if t % 100 == 0 or t == 1:
        print(f"step {t:4d} nll {loss.item():.4f} val nll {nll(params, xv, yv).item():.4f} grad norm {gn:.2f}")
