import random
from collections import deque
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
random.seed(9)
torch.set_num_threads(1)
S, GAMMA, MAXT, NSTEP = 6, 0.97, 40, 3
WALLS = {(1, 1), (1, 2), (1, 3), (3, 2), (3, 3), (3, 4), (3, 5)}
GOAL = (5, 5)


class Grid:
    def reset(self):
        self.p, self.t = (0, random.randrange(3)), 0
        return self.obs()

    def obs(self):
        v = torch.zeros(2 * S)
        v[self.p[0]] = 1
        v[S + self.p[1]] = 1
        return v

    def step(self, a):
        if random.random() < 0.1:
            a = random.randrange(4)
        d = [(0, 1), (1, 0), (0, -1), (-1, 0)][a]
        n = (min(max(self.p[0] + d[0], 0), S - 1), min(max(self.p[1] + d[1], 0), S - 1))
        if n not in WALLS:
            self.p = n
        self.t += 1
        win = self.p == GOAL
        return self.obs(), float(win), win, self.t >= MAXT


def qnet():
    return nn.Sequential(nn.Linear(2 * S, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


q, tgt = qnet(), qnet()
tgt.load_state_dict(q.state_dict())
for p in tgt.parameters():
    p.requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
memory = deque(maxlen=6000)


def push(traj, flush):
    while len(traj) >= NSTEP or (flush and traj):
        part = list(traj)[:NSTEP]
        r = sum(GAMMA ** i * t[2] for i, t in enumerate(part))
        memory.append((part[0][0], part[0][1], r, part[-1][3], part[-1][4], GAMMA ** len(part)))
        traj.popleft()


@torch.no_grad()
def play(n=20):
    wins, steps = 0, 0
    for _ in range(n):
        e = Grid()
        s, end = e.reset(), False
        while not end:
            s, r, done, trunc = e.step(int(q(s).argmax()))
            end = done or trunc
        wins += done
        steps += e.t
    return wins / n, steps / n


env, updates, recent = Grid(), 0, deque(maxlen=100)
print("greedy before training: success %.2f, steps %.1f" % play())
for ep in range(220):
    s, traj, end = env.reset(), deque(), False
    eps = max(0.08, 1.0 - ep / 110)
    while not end:
        with torch.no_grad():
            a = random.randrange(4) if random.random() < eps else int(q(s).argmax())
        s2, r, done, trunc = env.step(a)
        traj.append((s, a, r, s2, done))
        end = done or trunc
        push(traj, end)
        s = s2
        if len(memory) >= 500 and env.t % 2 == 0:
            bs, ba, br, bn, bd, bg = zip(*random.sample(memory, 64))
            bs, bn = torch.stack(bs), torch.stack(bn)
            ba, br, bd, bg = torch.tensor(ba), torch.tensor(br), torch.tensor(bd).float(), torch.tensor(bg)
            with torch.no_grad():
                best = q(bn).argmax(1, keepdim=True)
                y = br + bg * (1 - bd) * tgt(bn).gather(1, best).squeeze(1)
            qa = q(bs).gather(1, ba[:, None]).squeeze(1)
            loss = F.smooth_l1_loss(qa, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            recent.append((loss.item(), qa.mean().item()))
            if updates % 150 == 0:
                tgt.load_state_dict(q.state_dict())
    if ep % 20 == 0 and recent:
        l, m = (sum(v) / len(recent) for v in zip(*recent))
        print(f"episode {ep:3d} eps {eps:.2f} updates {updates:4d} td loss {l:.5f} mean Q {m:.3f}")
print("greedy after training: success %.2f, steps %.1f" % play(40))
