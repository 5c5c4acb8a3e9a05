import copy
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
torch.set_num_threads(1)
ACT = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], np.float32) * 0.25
ENT, HORIZON, GAMMA = 4, 12, 0.9


class Field:
    """Agent on a plane; entity features are relative position and value (+1 pickup, -1 hazard)."""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.p = np.zeros(2, np.float32)
        self.e = self.rng.uniform(-1, 1, (ENT, 2)).astype(np.float32)
        self.v = np.where(np.arange(ENT) < 2, 1.0, -1.0).astype(np.float32)
        self.rng.shuffle(self.v)
        return self.obs()

    def obs(self):
        return np.concatenate([self.e - self.p, self.v[:, None]], 1)

    def step(self, a):
        self.p = np.clip(self.p + ACT[a], -1, 1)
        d2 = ((self.e - self.p) ** 2).sum(1)
        return self.obs(), float((self.v * np.exp(-d2 / 0.1)).sum())


def behaviour(env, rng):
    if rng.random() < 0.5:
        return int(rng.integers(5))
    near = env.e[env.v > 0]
    k = near[int(rng.integers(len(near)))]
    return int(((env.p + ACT - k) ** 2).sum(1).argmin())


def log_data(n, seed):
    rng = np.random.default_rng(seed)
    env, rows, rets = Field(rng), [], []
    for _ in range(n):
        s, tot = env.reset(), 0.0
        for t in range(HORIZON):
            a = behaviour(env, rng)
            s2, r = env.step(a)
            rows.append((s, a, r, s2))
            s, tot = s2, tot + r
        rets.append(tot)
    S, A, R, S2 = (np.array(c) for c in zip(*rows))
    return (torch.tensor(S), torch.tensor(A), torch.tensor(R, dtype=torch.float32), torch.tensor(S2)), float(np.mean(rets))


class SetNet(nn.Module):
    def __init__(self, out, d=48):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(3, d), nn.SiLU(), nn.Linear(d, d))
        self.query = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, out))

    def forward(self, s):
        e = self.emb(s)
        h, _ = self.att(self.query.expand(len(s), -1, -1), e, e, need_weights=False)
        return self.out(h[:, 0] + e.mean(1))


def expectile(u, tau):
    return (torch.abs(tau - (u < 0).float()) * u.square()).mean()


@torch.no_grad()
def play(pi, n, seed):
    env, tot = Field(np.random.default_rng(seed)), 0.0
    for _ in range(n):
        s = env.reset()
        for _ in range(HORIZON):
            a = int(pi(torch.tensor(s)[None])[0].argmax())
            s, r = env.step(a)
            tot += r
    return tot / n


(S, A, R, S2), mean_ret = log_data(1200, 0)
q1, q2, v, pi = SetNet(5), SetNet(5), SetNet(1), SetNet(5)
t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
for p in [*t1.parameters(), *t2.parameters()]:
    p.requires_grad_(False)
opt_q = torch.optim.Adam([*q1.parameters(), *q2.parameters()], 1.5e-3)
opt_v = torch.optim.Adam(v.parameters(), 1.5e-3)
opt_p = torch.optim.Adam(pi.parameters(), 1.5e-3)
print(f"logged policy return {mean_ret:.3f}, untrained {play(pi, 60, 5):.3f}")
t0 = time.time()
for it in range(1, 401):
    i = torch.randint(0, len(S), (80,))
    s, a, r, s2 = S[i], A[i][:, None], R[i], S2[i]

    with torch.no_grad():
        tq = torch.minimum(t1(s).gather(1, a), t2(s).gather(1, a)).squeeze(1)
    val = v(s).squeeze(1)
    adv = tq - val
    lv = expectile(adv, 0.8)
    opt_v.zero_grad()
    lv.backward()
    opt_v.step()

    with torch.no_grad():
        y = r + GAMMA * v(s2).squeeze(1)
    lq = sum(F.mse_loss(q(s).gather(1, a).squeeze(1), y) for q in (q1, q2))
    opt_q.zero_grad()
    lq.backward()
    opt_q.step()

    w = torch.exp(4.0 * adv.detach()).clamp(max=50.0)
    lp = (w * F.cross_entropy(pi(s), a.squeeze(1), reduction="none")).mean()
    opt_p.zero_grad()
    lp.backward()
    opt_p.step()

    with torch.no_grad():
        for t, q in ((t1, q1), (t2, q2)):
            for pt, pq in zip(t.parameters(), q.parameters()):
                pt.lerp_(pq, 0.02)
    if it == 1 or it % 50 == 0:
        print(f"{it:4d} q {lq.item():.4f} v {lv.item():.4f} pi {lp.item():.4f} mean V {val.mean().item():+.3f} ({time.time() - t0:.1f}s)")
    if it % 200 == 0:
        print(f"     return {play(pi, 60, 5):.3f}")
