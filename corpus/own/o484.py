import torch
import torch.nn as nn

torch.manual_seed(21)
S = 5
GOAL = (4, 4)
TRAPS = {(2, 2), (3, 0)}
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
trap_map = torch.zeros(S, S, dtype=torch.bool)
for r, c in TRAPS:
    trap_map[r, c] = True


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Embedding(S * S, 64)
        self.h = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        nn.init.zeros_(self.h[-1].weight)
        nn.init.zeros_(self.h[-1].bias)

    def forward(self, pos):
        return torch.distributions.Categorical(logits=self.h(self.t(pos[:, 0] * S + pos[:, 1])))


def rollout(pi, n, horizon=20):
    pos = torch.randint(0, S - 1, (n, 2))
    alive = torch.ones(n)
    logps, rews, masks, ents = [], [], [], []
    for _ in range(horizon):
        d = pi(pos)
        a = d.sample()
        logps.append(d.log_prob(a))
        ents.append(d.entropy())
        masks.append(alive.clone())
        pos = (pos + MOVES[a]).clamp(0, S - 1)
        at_goal = (pos[:, 0] == GOAL[0]) & (pos[:, 1] == GOAL[1])
        in_trap = trap_map[pos[:, 0], pos[:, 1]]
        rews.append((-0.02 + 1.0 * at_goal - 0.5 * in_trap) * alive)
        alive = alive * (~(at_goal | in_trap)).float()
    return map(torch.stack, (logps, rews, masks, ents))


pi = Policy()
opt = torch.optim.Adam(pi.parameters(), lr=5e-3)
baseline = 0.0
gamma = 0.98
for it in range(160):
    logp, rew, mask, ent = rollout(pi, 32)
    G = torch.zeros_like(rew)
    acc = torch.zeros(rew.size(1))
    for t in reversed(range(rew.size(0))):
        acc = rew[t] + gamma * acc
        G[t] = acc
    ret = rew.sum(0).mean().item()
    live = mask > 0
    adv = (G - G[live].mean()) / (G[live].std() + 1e-6)
    pg = -(logp * adv * mask).sum() / mask.sum()
    ent_coef = 0.02 * (1 - it / 160)
    loss = pg - ent_coef * (ent * mask).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    baseline = 0.95 * baseline + 0.05 * ret if it else ret
    if it % 10 == 0 or it == 159:
        print(f"update {it:3d} loss {loss.item():+.4f} return {ret:+.3f} smoothed {baseline:+.3f} "
              f"len {mask.sum(0).mean().item():.1f} entropy {((ent * mask).sum() / mask.sum()).item():.3f}")
