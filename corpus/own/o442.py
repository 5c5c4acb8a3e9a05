import copy
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn

W, H = 7, 5
MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0)]
GOAL = (6, 4)


class Grid:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.pos = (self.rng.randrange(0, 3), self.rng.randrange(0, 3))
        self.t = 0
        return self.obs()

    def obs(self):
        o = np.zeros(W + H, dtype=np.float32)
        o[self.pos[0]] = 1
        o[W + self.pos[1]] = 1
        return o

    def step(self, a):
        dx, dy = MOVES[a]
        if self.rng.random() < 0.1:
            dx, dy = MOVES[self.rng.randrange(4)]
        x = min(max(self.pos[0] + dx, 0), W - 1)
        y = min(max(self.pos[1] + dy, 0), H - 1)
        self.pos = (x, y)
        self.t += 1
        done = self.pos == GOAL
        return self.obs(), (1.0 if done else -0.02), done, self.t >= 40


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(W + H, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, s):
        return self.f(s)


def pseudo_huber(err, delta=1.0):
    return (delta ** 2 * ((1 + (err / delta) ** 2).sqrt() - 1)).mean()


def learn(online, target, opt, memory, gamma=0.97, bs=64):
    s, a, r, s2, d = map(np.array, zip(*random.sample(memory, bs)))
    s, s2 = torch.from_numpy(s), torch.from_numpy(s2)
    a = torch.from_numpy(a).unsqueeze(1)
    r, d = torch.tensor(r, dtype=torch.float32), torch.tensor(d, dtype=torch.float32)
    q = online(s).gather(1, a).squeeze(1)
    with torch.no_grad():
        best = online(s2).argmax(1, keepdim=True)
        nxt = target(s2).gather(1, best).squeeze(1)
        y = r + gamma * (1 - d) * nxt
    loss = pseudo_huber(q - y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def greedy_return(online, env, n=40):
    total, wins = 0.0, 0
    for _ in range(n):
        s, stop = env.reset(), False
        while not stop:
            with torch.no_grad():
                a = online(torch.from_numpy(s)).argmax().item()
            s, r, done, cut = env.step(a)
            total += r
            wins += done
            stop = done or cut
    return total / n, wins / n


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    env = Grid(random.Random(1))
    online = QNet()
    target = copy.deepcopy(online)
    opt = torch.optim.Adam(online.parameters(), lr=1e-3)
    memory = deque(maxlen=10000)
    s, losses = env.reset(), []
    for frame in range(4500):
        eps = max(0.1, 1 - frame / 3000)
        if random.random() < eps:
            a = random.randrange(4)
        else:
            with torch.no_grad():
                a = online(torch.from_numpy(s)).argmax().item()
        s2, r, done, cut = env.step(a)
        memory.append((s, a, r, s2, float(done)))
        s = env.reset() if (done or cut) else s2
        if frame >= 500:
            losses.append(learn(online, target, opt, memory))
        if frame % 200 == 0:
            target.load_state_dict(online.state_dict())
        if frame % 300 == 0 and losses:
            print(f"frame {frame} eps {eps:.2f} loss {np.mean(losses[-100:]):.5f}", flush=True)
    ret, win = greedy_return(online, Grid(random.Random(77)))
    print(f"greedy return {ret:.3f} success {win:.2f}")


if __name__ == "__main__":
    main()
