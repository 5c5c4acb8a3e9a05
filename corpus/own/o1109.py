import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical

parser = argparse.ArgumentParser()
parser.add_argument("--envs", type=int, default=16)
parser.add_argument("--rollout", type=int, default=20)
parser.add_argument("--updates", type=int, default=400)
parser.add_argument("--gamma", type=float, default=0.97)
parser.add_argument("--lam", type=float, default=0.9)
parser.add_argument("--entropy", type=float, default=0.01)
parser.add_argument("--size", type=int, default=5)
parser.add_argument("--seed", type=int, default=8)
args = parser.parse_args()


class SlipperyGrid:
    MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, size, seed):
        self.n, self.size = n, size
        self.g = torch.Generator().manual_seed(seed)
        self.pos = torch.zeros(n, 2, dtype=torch.long)
        self.goal = torch.zeros(n, 2, dtype=torch.long)
        self.clock = torch.zeros(n)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, mask):
        k = int(mask.sum())
        self.pos[mask] = torch.randint(0, self.size, (k, 2), generator=self.g)
        self.goal[mask] = torch.randint(0, self.size, (k, 2), generator=self.g)
        self.clock[mask] = 0

    def observe(self):
        a = nn.functional.one_hot(self.pos, self.size).flatten(1)
        b = nn.functional.one_hot(self.goal, self.size).flatten(1)
        return torch.cat([a, b], 1).float()

    def step(self, action):
        slip = torch.rand(self.n, generator=self.g) < 0.1
        action = torch.where(slip, torch.randint(0, 4, (self.n,), generator=self.g), action)
        self.pos = (self.pos + self.MOVES[action]).clamp(0, self.size - 1)
        self.clock += 1
        reached = (self.pos == self.goal).all(1)
        done = reached | (self.clock >= 25)
        reward = reached.float() - 0.02
        self.reset(done)
        return self.observe(), reward, done.float(), reached.float()


def trunk(n_in, n_out):
    net = nn.Sequential(nn.Linear(n_in, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_out))
    nn.init.orthogonal_(net[-1].weight, 0.01)
    nn.init.zeros_(net[-1].bias)
    return net


torch.manual_seed(args.seed)
env = SlipperyGrid(args.envs, args.size, args.seed)
actor, critic = trunk(4 * args.size, 4), trunk(4 * args.size, 1)
actor_opt = torch.optim.Adam(actor.parameters(), lr=2e-3)
critic_opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

obs = env.observe()
goal_rate, mean_reward = 0.0, 0.0
for update in range(1, args.updates + 1):
    observations, actions, rewards, dones, reached = [], [], [], [], []
    for _ in range(args.rollout):
        with torch.no_grad():
            action = Categorical(logits=actor(obs)).sample()
        observations.append(obs)
        obs, r, d, hit = env.step(action)
        actions.append(action)
        rewards.append(r)
        dones.append(d)
        reached.append(hit)
    observations, actions = torch.stack(observations), torch.stack(actions)
    rewards, dones = torch.stack(rewards), torch.stack(dones)
    with torch.no_grad():
        values = critic(torch.cat([observations, obs[None]])).squeeze(-1)
        adv, running = torch.zeros_like(rewards), torch.zeros(args.envs)
        for t in reversed(range(args.rollout)):
            live = 1 - dones[t]
            delta = rewards[t] + args.gamma * values[t + 1] * live - values[t]
            running = delta + args.gamma * args.lam * live * running
            adv[t] = running
        target = adv + values[:-1]
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)

    dist = Categorical(logits=actor(observations))
    policy_loss = -(dist.log_prob(actions) * adv).mean() - args.entropy * dist.entropy().mean()
    actor_opt.zero_grad()
    policy_loss.backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
    actor_opt.step()

    value_loss = (critic(observations).squeeze(-1) - target).pow(2).mean()
    critic_opt.zero_grad()
    value_loss.backward()
    critic_opt.step()

    finished = dones.sum().clamp(min=1)
    goal_rate = 0.95 * goal_rate + 0.05 * (torch.stack(reached).sum() / finished).item()
    mean_reward = 0.95 * mean_reward + 0.05 * rewards.mean().item()
    if update % 20 == 0:
        print(f"update {update:4d} policy_loss {policy_loss.item():+.4f} value_loss {value_loss.item():.4f} "
              f"reward/step {mean_reward:+.3f} goal rate {goal_rate:.2f}", flush=True)
