import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class Cfg:
    n_env: int = 32
    n_step: int = 16
    updates: int = 140
    gamma: float = 0.99
    lam: float = 0.95
    lr: float = 2e-3
    ent: float = 0.005
    vf: float = 0.5
    seed: int = 0


class CartPole:
    """Vectorised cart-pole with auto-reset; 200 steps time limit."""

    def __init__(self, n):
        self.n = n
        self.s = self._fresh(n)
        self.t = torch.zeros(n)

    def _fresh(self, n):
        return (torch.rand(n, 4) - 0.5) * 0.1

    def step(self, a):
        x, v, th, w = self.s.unbind(1)
        f = torch.where(a == 1, 10.0, -10.0)
        c, s = th.cos(), th.sin()
        tmp = (f + 0.05 * w * w * s) / 1.1
        thacc = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        xacc = tmp - 0.05 * thacc * c / 1.1
        dt = 0.02
        self.s = torch.stack([x + dt * v, v + dt * xacc, th + dt * w, w + dt * thacc], 1)
        self.t += 1
        fell = (self.s[:, 0].abs() > 2.4) | (self.s[:, 2].abs() > 12 * math.pi / 180)
        timeout = (self.t >= 200) & ~fell
        final, length = self.s.clone(), self.t.clone()
        done = fell | timeout
        if done.any():
            self.s[done] = self._fresh(int(done.sum()))
            self.t[done] = 0
        return torch.ones(self.n), fell, timeout, final, length


def mlp(o):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, o))


def main(cfg=Cfg()):
    torch.manual_seed(cfg.seed)
    env, actor, critic = CartPole(cfg.n_env), mlp(2), mlp(1)
    opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=cfg.lr, eps=1e-5)
    finished = []
    obs_scale = torch.tensor([1.0, 0.5, 5.0, 0.5])
    for u in range(cfg.updates):
        O, A, R, D, NV = [], [], [], [], []
        with torch.no_grad():
            for _ in range(cfg.n_step):
                o = env.s * obs_scale
                a = Categorical(logits=actor(o)).sample()
                r, fell, timeout, final, length = env.step(a)
                done = fell | timeout
                finished += length[done].tolist()
                nv = critic(final * obs_scale).squeeze(1) * (~fell).float()
                O.append(o), A.append(a), R.append(r * 0.1), D.append(done.float()), NV.append(nv)
            O, A, R, D, NV = map(torch.stack, (O, A, R, D, NV))
            V = critic(O).squeeze(-1)
            delta = R + cfg.gamma * NV - V
            adv, run = torch.zeros_like(R), torch.zeros(cfg.n_env)
            for t in reversed(range(cfg.n_step)):
                run = delta[t] + cfg.gamma * cfg.lam * (1 - D[t]) * run
                adv[t] = run
            target = adv + V
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        dist = Categorical(logits=actor(O))
        pg = -(dist.log_prob(A) * adv).mean()
        vf = (critic(O).squeeze(-1) - target).pow(2).mean()
        loss = pg + cfg.vf * vf - cfg.ent * dist.entropy().mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(opt.param_groups[0]["params"], 0.5)
        opt.step()
        if u % 10 == 9 or u == 0:
            last = finished[-100:] or [float("nan")]
            print(f"update {u + 1:4d} loss {loss.item():+.3f} value loss {vf.item():.3f} "
                  f"mean episode length {sum(last) / len(last):.1f}")


if __name__ == "__main__":
    main()
