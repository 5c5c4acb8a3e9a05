import argparse

import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--envs", type=int, default=32)
p.add_argument("--rollout", type=int, default=40)
p.add_argument("--iterations", type=int, default=30)
p.add_argument("--epochs", type=int, default=4)
p.add_argument("--minibatches", type=int, default=4)
p.add_argument("--lr", type=float, default=2.5e-3)
p.add_argument("--gamma", type=float, default=0.97)
p.add_argument("--lam", type=float, default=0.95)
p.add_argument("--clip", type=float, default=0.2)
p.add_argument("--target-kl", type=float, default=0.05)
p.add_argument("--seed", type=int, default=18)
args = p.parse_args()


class PointMass:
    LIMIT = 60

    def __init__(self, n):
        self.n = n
        self.pos, self.vel, self.goal = torch.zeros(n, 2), torch.zeros(n, 2), torch.zeros(n, 2)
        self.t = torch.zeros(n, dtype=torch.long)
        self.reset(torch.ones(n, dtype=torch.bool))
        self.t = torch.randint(0, self.LIMIT, (n,))

    def reset(self, m):
        k = int(m.sum())
        self.pos[m] = torch.rand(k, 2) * 2 - 1
        self.vel[m] = 0.0
        self.goal[m] = torch.rand(k, 2) * 2 - 1
        self.t[m] = 0

    def obs(self):
        return torch.cat([self.goal - self.pos, self.vel, self.pos], 1)

    def step(self, a):
        force = a.clamp(-1, 1)
        self.vel = 0.9 * self.vel + 0.1 * force
        self.pos = self.pos + 0.2 * self.vel
        self.t += 1
        dist = (self.goal - self.pos).norm(dim=1)
        reward = 0.1 * (-dist + 0.5 * (dist < 0.1).float() - 0.02 * a.square().sum(1))
        truncated = self.t >= self.LIMIT
        final = self.obs()
        if truncated.any():
            self.reset(truncated)
        return final, reward, truncated.float()


def layer(i, o, gain=2 ** 0.5):
    m = nn.Linear(i, o)
    nn.init.orthogonal_(m.weight, gain)
    nn.init.zeros_(m.bias)
    return m


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(layer(6, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))
        self.v = nn.Sequential(layer(6, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def dist(self, o):
        return torch.distributions.Independent(torch.distributions.Normal(self.pi(o), self.log_std.exp()), 1)

    def value(self, o):
        return self.v(o).squeeze(-1)


@torch.no_grad()
def collect(env, ac):
    keys = {k: [] for k in ("o", "a", "lp", "r", "v", "v_next", "end")}
    for _ in range(args.rollout):
        o = env.obs()
        d = ac.dist(o)
        a = d.sample()
        final, r, end = env.step(a)
        for k, val in zip(keys, (o, a, d.log_prob(a), r, ac.value(o), ac.value(final), end)):
            keys[k].append(val)
    b = {k: torch.stack(v) for k, v in keys.items()}
    adv = torch.zeros_like(b["r"])
    acc = torch.zeros(env.n)
    for t in reversed(range(args.rollout)):
        delta = b["r"][t] + args.gamma * b["v_next"][t] - b["v"][t]
        acc = delta + args.gamma * args.lam * (1 - b["end"][t]) * acc
        adv[t] = acc
    b["adv"], b["ret"] = adv, adv + b["v"]
    mean_r = b["r"].mean().item()
    return {k: v.flatten(0, 1) for k, v in b.items()}, mean_r


@torch.no_grad()
def evaluate(ac, n=200):
    env = PointMass(n)
    env.reset(torch.ones(n, dtype=torch.bool))
    for _ in range(env.LIMIT - 1):
        env.step(ac.dist(env.obs()).mean)
    return (env.goal - env.pos).norm(dim=1).mean().item()


torch.manual_seed(args.seed)
env, ac = PointMass(args.envs), ActorCritic()
opt = torch.optim.Adam(ac.parameters(), lr=args.lr, eps=1e-5)
print(f"final distance before training {evaluate(ac):.3f}")
steps = 0
for it in range(args.iterations):
    for group in opt.param_groups:
        group["lr"] = args.lr * (1 - it / args.iterations)
    b, mean_r = collect(env, ac)
    n = len(b["r"])
    stop = False
    for _ in range(args.epochs):
        for idx in torch.randperm(n).chunk(args.minibatches):
            d = ac.dist(b["o"][idx])
            log_ratio = d.log_prob(b["a"][idx]) - b["lp"][idx]
            ratio = log_ratio.exp()
            kl = (ratio - 1 - log_ratio).mean().item()
            if kl > args.target_kl:
                stop = True
                break
            adv = b["adv"][idx]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            surr = torch.minimum(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv)
            v_loss = 0.5 * (ac.value(b["o"][idx]) - b["ret"][idx]).square().mean()
            loss = -surr.mean() + 0.5 * v_loss - 1e-3 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            opt.step()
            steps += 1
        if stop:
            break
    if it % 3 == 0 or it == args.iterations - 1:
        print(f"iter {it:2d} updates {steps:3d} loss {loss.item():+.4f} value loss {v_loss.item():.4f} kl {kl:.4f} "
              f"std {ac.log_std.exp().mean().item():.2f} reward/step {mean_r:+.3f}")
print(f"final distance after training {evaluate(ac):.3f}")
