import torch
import torch.nn as nn
import torch.nn.functional as F

MAP = """
.......
.xx.xx.
.x...x.
...x...
.x...x.
.xx.xx.
.......
""".split()


class GridWorld:

    def __init__(self, n, horizon=24):
        self.n, self.horizon, self.size = n, horizon, len(MAP)
        free = torch.tensor([[c == "." for c in row] for row in MAP])
        self.cells = free.flatten().nonzero().squeeze(1)
        moves = [(-1, 0), (1, 0), (0, -1), (0, 1)]
        self.table = torch.zeros(self.size ** 2, 4, dtype=torch.long)
        for cell in self.cells.tolist():
            r, c = divmod(cell, self.size)
            for k, (dr, dc) in enumerate(moves):
                rr, cc = r + dr, c + dc
                ok = 0 <= rr < self.size and 0 <= cc < self.size and bool(free[rr, cc])
                self.table[cell, k] = rr * self.size + cc if ok else cell

    def reset(self):
        self.pos = self.cells[torch.randint(len(self.cells), (self.n,))]
        self.goal = self.cells[torch.randint(len(self.cells), (self.n,))]
        self.live = self.pos != self.goal
        return self.obs()

    def obs(self):
        m = self.size ** 2
        return torch.cat([F.one_hot(self.pos, m), F.one_hot(self.goal, m)], 1).float()

    def step(self, a):
        was = self.live
        self.pos = torch.where(was, self.table[self.pos, a], self.pos)
        reached = was & (self.pos == self.goal)
        self.live = was & ~reached
        return self.obs(), reached.float() - 0.02 * was.float()


def mlp(out):
    return nn.Sequential(nn.Linear(98, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, out))


def rollout(env, policy):
    S, A, R, live = [], [], [], []
    with torch.no_grad():
        s = env.reset()
        for _ in range(env.horizon):
            live.append(env.live)
            a = torch.multinomial(policy(s).softmax(-1), 1).squeeze(1)
            S.append(s)
            A.append(a)
            s, r = env.step(a)
            R.append(r)
    return map(torch.stack, (S, A, R, live))


def reward_to_go(R, gamma):
    out, acc = torch.zeros_like(R), torch.zeros(R.shape[1])
    for t in range(len(R) - 1, -1, -1):
        acc = R[t] + gamma * acc
        out[t] = acc
    return out


@torch.no_grad()
def success(policy, n=200):
    env = GridWorld(n)
    s = env.reset()
    for _ in range(env.horizon):
        s, _ = env.step(torch.multinomial(policy(s).softmax(-1), 1).squeeze(1))
    return 1 - env.live.float().mean().item()


torch.manual_seed(16)
env = GridWorld(n=80)
policy, value = mlp(4), mlp(1)
nn.init.zeros_(policy[-1].weight)
opt = torch.optim.Adam([{"params": policy.parameters(), "lr": 4e-3}, {"params": value.parameters(), "lr": 4e-3}])
UPDATES = 220
print(f"success of the random policy {success(policy):.3f}")
for it in range(UPDATES):
    S, A, R, live = rollout(env, policy)
    G = reward_to_go(R, 0.95)
    s, a, g = S[live], A[live], G[live]
    v = value(s).squeeze(-1)
    adv = g - v.detach()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    logp = policy(s).log_softmax(-1)
    pg = -(logp.gather(1, a[:, None]).squeeze(1) * adv).mean()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    vf = F.mse_loss(v, g)
    loss = pg + vf - 0.02 * entropy
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    nn.utils.clip_grad_norm_(value.parameters(), 1.0)
    opt.step()
    if it % 20 == 0 or it == UPDATES - 1:
        print(f"update {it:3d} loss {loss.item():+.4f} (policy {pg.item():+.4f} value {vf.item():.4f} entropy {entropy.item():.3f}) "
              f"mean return {R.sum(0).mean().item():+.3f} success {success(policy):.3f}")
