import torch
from torch.func import functional_call, vmap
from torch import nn

torch.manual_seed(5)
T, N_DIR, SIGMA, LR = 30, 32, 0.08, 0.04


class Policy(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.tok = nn.Parameter(torch.randn(3, d) * 0.5)
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.out = nn.Linear(3 * d, 1)

    def forward(self, obs):
        x = obs.unsqueeze(-1) * self.tok
        a = (self.q(x) @ self.k(x).transpose(-1, -2) / 3).softmax(-1)
        return torch.tanh(self.out((x + a @ self.v(x)).flatten(1))).squeeze(-1)


policy = Policy()
params = {k: v.detach().clone() for k, v in policy.named_parameters()}
speed = {k: torch.zeros_like(v) for k, v in params.items()}


def episode(p, start, target):
    pos, vel, cost = start, torch.zeros_like(start), 0.0
    for _ in range(T):
        u = functional_call(policy, p, (torch.stack([pos, vel, target], -1),))
        vel = 0.9 * vel + 0.3 * u
        pos = pos + 0.3 * vel
        cost = cost + (pos - target).square() + 0.05 * vel.square()
    return (cost / T).mean()


def ranks(x):
    r = torch.empty_like(x)
    r[x.argsort()] = torch.linspace(-0.5, 0.5, len(x))
    return r


ts, tt = torch.rand(200) * 2 - 1, torch.rand(200) * 2 - 1
with torch.no_grad():
    for gen in range(131):
        s, t = torch.rand(24) * 2 - 1, torch.rand(24) * 2 - 1
        eps = {k: torch.randn(N_DIR, *v.shape) for k, v in params.items()}
        both = {k: torch.cat([params[k] + SIGMA * e, params[k] - SIGMA * e]) for k, e in eps.items()}
        cost = vmap(episode, in_dims=(0, None, None))(both, s, t)
        w = ranks(cost)
        w = w[:N_DIR] - w[N_DIR:]
        for k, e in eps.items():
            g = torch.tensordot(w, e, 1) / (N_DIR * SIGMA)
            speed[k] = 0.8 * speed[k] + 0.2 * g
            params[k] = params[k] - LR * speed[k]
        if gen % 20 == 0:
            print(f"gen {gen} loss {cost.mean().item():.4f} held-out cost {episode(params, ts, tt).item():.4f}")
