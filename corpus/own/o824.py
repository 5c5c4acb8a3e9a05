import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(1)
torch.set_num_threads(1)
INNER_LR, INNER, META_BATCH, K = 0.02, 3, 16, 10

net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def tasks(n, gen=None):
    amp = 0.5 + 3.0 * torch.rand(n, 1, 1, generator=gen)
    phase = 3.1416 * torch.rand(n, 1, 1, generator=gen)
    x = torch.rand(n, 2 * K, 1, generator=gen) * 8 - 4
    y = amp * torch.sin(x + phase)
    return x[:, :K], y[:, :K], x[:, K:], y[:, K:]


def mse(p, x, y):
    return (functional_call(net, p, (x,)) - y).pow(2).mean()


def adapt(p, x, y, steps):
    for _ in range(steps):
        g = grad(mse)(p, x, y)
        p = {k: v - INNER_LR * g[k] for k, v in p.items()}
    return p


def query_loss(p, sx, sy, qx, qy):
    return mse(adapt(p, sx, sy, INNER), qx, qy)


theta = dict(net.named_parameters())
opt = torch.optim.Adam(theta.values(), lr=3e-3)
held = tasks(100, torch.Generator().manual_seed(77))


def evaluate():
    p = {k: v.detach() for k, v in theta.items()}
    pre = vmap(mse, in_dims=(None, 0, 0))(p, held[2], held[3]).mean()
    post = vmap(lambda a, b, c, d: mse(adapt(p, a, b, 5), c, d))(*held).mean()
    return pre.item(), post.item()


print(f"variance of held-out targets {held[3].var():.3f}")
for it in range(320):
    batch = tasks(META_BATCH)
    with torch.no_grad():
        before = vmap(mse, in_dims=(None, 0, 0))(theta, batch[2], batch[3]).mean()
    loss = vmap(query_loss, in_dims=(None, 0, 0, 0, 0))(theta, *batch).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(theta.values(), 5.0)
    opt.step()
    if it % 40 == 0 or it == 319:
        print(f"meta-step {it:4d} loss before adaptation {before.item():.3f} after {loss.item():.3f} "
              "| held-out %.3f -> %.3f" % evaluate())
