import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(7)
torch.set_num_threads(1)
rng = np.random.default_rng(7)
NENV, NSTEP, GAMMA, LAM = 16, 32, 0.98, 0.95


class Mine:
    """Three seams; digging the one that is lit pays 0.1, digging elsewhere nothing.
    The fourth action sells the claim for 0.4 and ends the episode."""

    def __init__(self, n):
        self.n = n
        self.lit, self.t, self.total = np.zeros(n, int), np.zeros(n, int), np.zeros(n)

    def _spawn(self, m):
        self.t[m] = 0
        self.total[m] = 0.0

    def reset(self):
        self._spawn(np.ones(self.n, bool))
        return self.obs()

    def obs(self):
        self.lit = rng.integers(0, 3, self.n)
        sig = np.eye(3)[self.lit] + 0.3 * rng.standard_normal((self.n, 3))
        return torch.tensor(np.concatenate([sig, self.t[:, None] / 40], 1), dtype=torch.float32)

    def step(self, a):
        r = np.where(a == 3, 0.4, np.where(a == self.lit, 0.1, 0.0))
        self.t += 1
        self.total += r
        done = (a == 3) | (self.t >= 40)
        gain = self.total[done].copy()
        self._spawn(done)
        return self.obs(), torch.tensor(r, dtype=torch.float32), torch.tensor(done, dtype=torch.float32), gain


def mlp(out, gain):
    net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, out))
    nn.init.orthogonal_(net[-1].weight, gain)
    return net


actor, critic = mlp(4, 0.01), mlp(1, 1.0)
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=2e-3, eps=1e-5)
env = Mine(NENV)
obs, done = env.reset(), torch.zeros(NENV)
gains = []
UPDATES = 32
for up in range(UPDATES):
    O, A, LP, R, D, V = [], [], [], [], [], []
    for _ in range(NSTEP):
        with torch.no_grad():
            dist = torch.distributions.Categorical(logits=actor(obs))
            a = dist.sample()
            O.append(obs); A.append(a); LP.append(dist.log_prob(a)); V.append(critic(obs).squeeze(1))
        D.append(done)
        obs, r, done, gain = env.step(a.numpy())
        R.append(r)
        gains += gain.tolist()
    O, A, LP, R, D, V = map(torch.stack, (O, A, LP, R, D, V))
    with torch.no_grad():
        nv = critic(obs).squeeze(1)
    adv, last = torch.zeros_like(R), 0.0
    for t in reversed(range(NSTEP)):
        live = 1.0 - (done if t == NSTEP - 1 else D[t + 1])
        nxt = nv if t == NSTEP - 1 else V[t + 1]
        delta = R[t] + GAMMA * nxt * live - V[t]
        adv[t] = last = delta + GAMMA * LAM * live * last
    ret = adv + V
    fo, fa, fl, fadv, fret = O.flatten(0, 1), A.flatten(), LP.flatten(), adv.flatten(), ret.flatten()
    for _ in range(4):
        for idx in torch.randperm(len(fa)).split(128):
            d = torch.distributions.Categorical(logits=actor(fo[idx]))
            ratio = (d.log_prob(fa[idx]) - fl[idx]).exp()
            ad = (fadv[idx] - fadv[idx].mean()) / (fadv[idx].std() + 1e-8)
            pg = torch.max(-ad * ratio, -ad * ratio.clamp(0.8, 1.2)).mean()
            vf = 0.5 * (critic(fo[idx]).squeeze(1) - fret[idx]).pow(2).mean()
            loss = pg + 0.5 * vf - 0.005 * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            opt.step()
    if up % 4 == 0 or up == UPDATES - 1:
        print(f"update {up:2d} pg {pg.item():+.4f} value loss {vf.item():.4f} mean V {V.mean():.2f} "
              f"episode return {np.mean(gains[-60:]) if gains else 0:.2f}")
print(f"mean return of the last 100 episodes {np.mean(gains[-100:]):.2f} ({len(gains)} episodes)")
