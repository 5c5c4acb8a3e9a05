import torch
from torch import nn
from torch.func import functional_call, vmap

torch.manual_seed(3)


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, o):
        return torch.tanh(self.b(torch.tanh(self.a(o)))).squeeze(-1)


def cartpole(policy, state, steps=150):
    x, v, th, w = state.unbind(-1)
    alive = torch.ones_like(x)
    total = torch.zeros_like(x)
    for _ in range(steps):
        u = 10.0 * policy(torch.stack([x, v, th, w], -1))
        c, s = torch.cos(th), torch.sin(th)
        tmp = (u + 0.05 * w * w * s) / 1.1
        ta = (9.8 * s - c * tmp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        xa = tmp - 0.05 * ta * c / 1.1
        x, v, th, w = x + 0.02 * v, v + 0.02 * xa, th + 0.02 * w, w + 0.02 * ta
        alive = alive * ((x.abs() < 2.4) & (th.abs() < 0.35)).float()
        total = total + alive
    return total


net = Controller()
shapes = {k: v.shape for k, v in net.named_parameters()}
theta = torch.cat([p.detach().flatten() for p in net.parameters()])


def unpack(flat):
    out, i = {}, 0
    for k, s in shapes.items():
        out[k] = flat[i:i + s.numel()].view(s)
        i += s.numel()
    return out


def fitness(flat, starts):
    return cartpole(lambda o: functional_call(net, unpack(flat), (o,)), starts).mean()


pop, sigma, lr = 24, 0.15, 0.12
vel = torch.zeros_like(theta)
evaluate = vmap(fitness, in_dims=(0, None))
with torch.no_grad():
    for gen in range(150):
        starts = 0.15 * (torch.rand(8, 4) * 2 - 1)
        eps = torch.randn(pop, theta.numel())
        scores = evaluate(torch.cat([theta + sigma * eps, theta - sigma * eps]), starts)
        ranks = scores.argsort().argsort().float() / (2 * pop - 1) - 0.5
        grad = ((ranks[:pop] - ranks[pop:])[:, None] * eps).mean(0) / sigma
        vel = 0.8 * vel + lr * grad
        theta = theta + vel
        if gen % 15 == 0:
            print("generation", gen, "loss %.2f" % -scores.mean().item())
    final = fitness(theta, 0.2 * (torch.rand(200, 4) * 2 - 1))
    random_net = fitness(0.3 * torch.randn_like(theta), 0.2 * (torch.rand(200, 4) * 2 - 1))
print("held-out steps balanced %.1f of 150, random controller %.1f" % (final, random_net))
