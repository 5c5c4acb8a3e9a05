import random
import collections
import numpy as np
import torch
from torch import nn


random.seed(2); np.random.seed(2); torch.manual_seed(2)
H, W = 8, 7


class Catch:
    def reset(self):
        self.by, self.bx, self.px = 0, random.randrange(W), random.randrange(W)
        self.drift = random.choice([-1, 0, 0, 1])
        return self.obs()

    def obs(self):
        o = np.zeros((2, H, W), np.float32)
        o[0, self.by, self.bx] = 1
        o[1, H - 1, self.px] = 1
        return o.ravel()

    def step(self, a):
        self.px = min(max(self.px + a - 1, 0), W - 1)
        self.by += 1
        if self.by % 2 == 0:
            self.bx = min(max(self.bx + self.drift, 0), W - 1)
        done = self.by == H - 1
        r = (1.0 if self.bx == self.px else -1.0) if done else 0.0
        return self.obs(), r, done


def net():
    return nn.Sequential(nn.Linear(2 * H * W, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))


q, q_target = net(), net()
q_target.load_state_dict(q.state_dict())
for p in q_target.parameters():
    p.requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
buf = []
env = Catch()
gamma, bs, sync = 0.97, 64, 100
steps, updates, scores, losses = 5000, 0, collections.deque(maxlen=100), collections.deque(maxlen=200)
s, total = env.reset(), 0
for it in range(steps):
    eps = max(0.05, 1.0 - it / 3000)
    if random.random() < eps:
        a = random.randrange(3)
    else:
        with torch.no_grad():
            a = int(q(torch.from_numpy(s)[None]).argmax(1))
    s2, r, done = env.step(a)
    buf.append((s, a, r, s2, done))
    s = s2
    if done:
        scores.append(r)
        s = env.reset()
    if len(buf) >= 500 and it % 3 == 0:
        b = random.sample(buf, bs)
        S, A, R, S2, Dn = zip(*b)
        S, S2 = torch.from_numpy(np.stack(S)), torch.from_numpy(np.stack(S2))
        A, R, Dn = torch.tensor(A), torch.tensor(R), torch.tensor(Dn, dtype=torch.float32)
        with torch.no_grad():
            best = q(S2).argmax(1, keepdim=True)
            tgt = R + gamma * (1 - Dn) * q_target(S2).gather(1, best).squeeze(1)
        loss = nn.functional.smooth_l1_loss(q(S).gather(1, A[:, None]).squeeze(1), tgt)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(q.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
        updates += 1
        if updates % sync == 0:
            q_target.load_state_dict(q.state_dict())
    if (it + 1) % 500 == 0 and losses:
        print(f"env step {it + 1} updates {updates} eps {eps:.2f} td-loss {np.mean(losses):.4f} mean score {np.mean(scores):+.2f}")

wins = 0
for _ in range(200):
    s, done = env.reset(), False
    while not done:
        with torch.no_grad():
            s, r, done = env.step(int(q(torch.from_numpy(s)[None]).argmax(1)))
    wins += r > 0
print("greedy catch rate", wins / 200)
