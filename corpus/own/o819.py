import math
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(29)
torch.set_num_threads(1)


def curve(x):
    return 2.0 * torch.exp(-0.4 * x[:, 0]) * torch.cos(2.5 * x[:, 0]) + 0.8 * torch.tanh(3 * x[:, 1]) * x[:, 2]


def readings(n):
    x = torch.rand(n, 3) * torch.tensor([4.0, 2.0, 2.0]) - torch.tensor([0.0, 1.0, 1.0])
    y = curve(x) + 0.05 * torch.randn(n)
    bad = torch.rand(n) < 0.33
    glitch = 60 * torch.randn(n) * torch.rand(n).pow(2) + 15
    return x, torch.where(bad, glitch, y)


X, Y = readings(6000)
grid = torch.rand(2000, 3) * torch.tensor([4.0, 2.0, 2.0]) - torch.tensor([0.0, 1.0, 1.0])
clean = curve(grid)


def linear(i, o):
    return [(torch.randn(i, o) / math.sqrt(i)).requires_grad_(), torch.zeros(o).requires_grad_()]


net = linear(3, 48) + linear(48, 48) + linear(48, 1)
raw_scale = torch.tensor(1.0, requires_grad=True)
raw_dof = torch.tensor(1.0, requires_grad=True)
params = net + [raw_scale, raw_dof]
second = [torch.zeros_like(p) for p in params]


def predict(x):
    h = torch.tanh(x @ net[0] + net[1])
    h = torch.tanh(h @ net[2] + net[3])
    return (h @ net[4] + net[5]).squeeze(1)


def nll(res):
    s = torch.nn.functional.softplus(raw_scale) + 1e-3
    v = torch.nn.functional.softplus(raw_dof) + 0.2
    z = (res / s) ** 2
    return (torch.lgamma(v / 2) - torch.lgamma((v + 1) / 2) + 0.5 * torch.log(v * math.pi) + torch.log(s)
            + (v + 1) / 2 * torch.log1p(z / v)).mean(), s, v


def rmse():
    with torch.no_grad():
        return (predict(grid) - clean).pow(2).mean().sqrt().item()


print(f"target std {Y.std():.2f}, clean std {clean.std():.3f}, "
      f"rmse of mean {(clean - Y.mean()).pow(2).mean().sqrt():.3f}, of median {(clean - Y.median()).pow(2).mean().sqrt():.3f}")
STEPS = 1500
for step in range(STEPS):
    idx = torch.randint(0, len(X), (256,))
    res = Y[idx] - predict(X[idx])
    loss, s, v = nll(res)
    grads = torch.autograd.grad(loss, params)
    lr = 4e-3 * (0.5 + 0.5 * math.cos(math.pi * step / STEPS))
    with torch.no_grad():
        for p, g, q in zip(params, grads, second):
            q.mul_(0.97).addcmul_(g, g, value=0.03)
            p.addcdiv_(g, (q / (1 - 0.97 ** (step + 1))).sqrt() + 1e-10, value=-lr)
    if step % 150 == 0 or step == STEPS - 1:
        print(f"step {step:4d} nll {loss.item():.4f} batch mse {res.pow(2).mean().item():9.2f} "
              f"scale {s.item():.3f} dof {v.item():.2f} clean rmse {rmse():.4f}")
