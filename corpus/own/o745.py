import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(17)
SIZE, HORIZON, NENV = 5, 16, 64
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Grid:
    def __init__(self):
        self.pos = torch.randint(0, SIZE, (NENV, 2))
        self.goal = torch.randint(0, SIZE, (NENV, 2))

    def obs(self):
        return torch.cat([nn.functional.one_hot(self.pos, SIZE), nn.functional.one_hot(self.goal, SIZE)], 1).flatten(1).float()

    def step(self, a):
        self.pos = (self.pos + MOVES[a]).clamp(0, SIZE - 1)
        done = (self.pos == self.goal).all(1)
        r = done.float() - 0.05
        new = torch.randint(0, SIZE, (NENV, 2))
        self.goal = torch.where(done[:, None], new, self.goal)
        return r, done.float()


def mlp(i, o, last):
    m = nn.Sequential(nn.Linear(i, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, o))
    for k, l in enumerate(x for x in m if isinstance(x, nn.Linear)):
        nn.init.orthogonal_(l.weight, last if k == 2 else 2 ** 0.5)
        nn.init.zeros_(l.bias)
    return m


pi, vf = mlp(4 * SIZE, 4, 0.01), mlp(4 * SIZE, 1, 1.0)
opt = torch.optim.Adam(list(pi.parameters()) + list(vf.parameters()), lr=2e-3, eps=1e-5)
env = Grid()
for it in range(45):
    obs, act, lp, rew, don, val = [], [], [], [], [], []
    with torch.no_grad():
        for _ in range(HORIZON):
            o = env.obs()
            d = Categorical(logits=pi(o))
            a = d.sample()
            r, dn = env.step(a)
            for buf, v in zip((obs, act, lp, rew, don, val), (o, a, d.log_prob(a), r, dn, vf(o).squeeze(-1))):
                buf.append(v)
        nxt = vf(env.obs()).squeeze(-1)
        adv, run = [], torch.zeros(NENV)
        for t in reversed(range(HORIZON)):
            nv = nxt if t == HORIZON - 1 else val[t + 1]
            delta = rew[t] + 0.95 * nv * (1 - don[t]) - val[t]
            run = delta + 0.95 * 0.95 * (1 - don[t]) * run
            adv.insert(0, run)
    obs, act, lp, adv, val = map(torch.cat, (obs, act, lp, adv, val))
    ret = adv + val
    tot = 0.0
    for _ in range(4):
        for j in torch.randperm(len(obs)).chunk(4):
            d = Categorical(logits=pi(obs[j]))
            ratio = (d.log_prob(act[j]) - lp[j]).exp()
            a = (adv[j] - adv[j].mean()) / (adv[j].std() + 1e-8)
            pg = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
            loss = pg + 0.5 * (vf(obs[j]).squeeze(-1) - ret[j]).pow(2).mean() - 0.01 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(list(pi.parameters()) + list(vf.parameters()), 0.5)
            opt.step()
            tot += loss.item() / 16
    if it % 10 == 0 or it == 44:
        print(f"iter {it} loss {tot:+.4f} reward/step {torch.stack(rew).mean():.4f} deliveries {torch.stack(don).sum():.0f}")
