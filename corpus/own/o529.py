import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    rows: int = 6
    cols: int = 5
    envs: int = 32
    updates: int = 500
    warmup: int = 30
    batch: int = 128
    capacity: int = 6000
    gamma: float = 0.97
    lr: float = 2e-3
    target_every: int = 20
    eps_end: float = 0.05
    eps_decay: int = 200
    seed: int = 12


class Catch:

    def __init__(self, n, rows, cols, g):
        self.n, self.rows, self.cols, self.g = n, rows, cols, g
        self.row, self.col, self.pad, self.drift = (torch.zeros(n, dtype=torch.long) for _ in range(4))
        self._reset(torch.ones(n, dtype=torch.bool))

    def _reset(self, mask):
        k = int(mask.sum())
        self.row[mask] = 0
        self.col[mask] = torch.randint(self.cols, (k,), generator=self.g)
        self.pad[mask] = torch.randint(self.cols, (k,), generator=self.g)
        self.drift[mask] = torch.randint(-1, 2, (k,), generator=self.g)

    def observe(self):
        o = torch.zeros(self.n, 3, self.rows, self.cols)
        i = torch.arange(self.n)
        o[i, 0, self.row, self.col] = 1
        o[i, 1, self.rows - 1, self.pad] = 1
        o[:, 2] = self.drift.float()[:, None, None]
        return o

    def step(self, action):
        self.pad = (self.pad + action - 1).clamp(0, self.cols - 1)
        nxt = self.col + self.drift
        hit = (nxt < 0) | (nxt >= self.cols)
        self.drift = torch.where(hit, -self.drift, self.drift)
        self.col = self.col + self.drift
        self.row = self.row + 1
        done = self.row == self.rows - 1
        reward = torch.where(done, torch.where(self.pad == self.col, 1.0, -1.0), 0.0)
        terminal_obs = self.observe()
        if done.any():
            self._reset(done)
        return terminal_obs, reward, done.float()


class Replay:
    def __init__(self, cap, shape):
        self.s, self.s2 = torch.zeros(cap, *shape), torch.zeros(cap, *shape)
        self.a, self.r, self.d = torch.zeros(cap, dtype=torch.long), torch.zeros(cap), torch.zeros(cap)
        self.cap, self.ptr, self.full = cap, 0, False

    def add(self, s, a, r, s2, d):
        idx = (self.ptr + torch.arange(len(a))) % self.cap
        self.s[idx], self.a[idx], self.r[idx], self.s2[idx], self.d[idx] = s, a, r, s2, d
        self.full |= self.ptr + len(a) >= self.cap
        self.ptr = (self.ptr + len(a)) % self.cap

    def sample(self, n):
        i = torch.randint(self.cap if self.full else self.ptr, (n,))
        return self.s[i], self.a[i], self.r[i], self.s2[i], self.d[i]


def make_q(rows, cols):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * rows * cols, 128), nn.ReLU(),
                         nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))


@torch.no_grad()
def evaluate(q, args, episodes=200):
    env = Catch(episodes, args.rows, args.cols, torch.Generator().manual_seed(999))
    for _ in range(args.rows - 1):
        _, r, _ = env.step(q(env.observe()).argmax(1))
    return r.mean().item()


def main():
    args = Args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    env = Catch(args.envs, args.rows, args.cols, g)
    q = make_q(args.rows, args.cols)
    target = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.Adam(q.parameters(), lr=args.lr)
    buf = Replay(args.capacity, (3, args.rows, args.cols))
    print(f"greedy return before training {evaluate(q, args):+.3f}")
    obs = env.observe()
    for tick in range(args.warmup + args.updates):
        k = tick - args.warmup
        eps = max(args.eps_end, 1 - (1 - args.eps_end) * max(k, 0) / args.eps_decay)
        with torch.no_grad():
            act = q(obs).argmax(1)
        rand = torch.rand(args.envs) < eps
        act = torch.where(rand, torch.randint(3, (args.envs,)), act)
        nxt, rew, done = env.step(act)
        buf.add(obs, act, rew, nxt, done)
        obs = env.observe()
        if k < 0:
            continue
        s, a, r, s2, d = buf.sample(args.batch)
        with torch.no_grad():
            best = q(s2).argmax(1, keepdim=True)
            y = r + args.gamma * (1 - d) * target(s2).gather(1, best).squeeze(1)
        pred = q(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(pred, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q.parameters(), 10.0)
        opt.step()
        if (k + 1) % args.target_every == 0:
            target.load_state_dict(q.state_dict())
        if k % 50 == 0 or k == args.updates - 1:
            print(f"update {k:4d} td loss {loss.item():.5f} eps {eps:.2f} mean Q {pred.mean().item():+.3f} "
                  f"greedy return {evaluate(q, args):+.3f}")


if __name__ == "__main__":
    main()
