import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE, HORIZON = 6, 8
MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0], [1, 1], [-1, -1]])
N_ACT = len(MOVES)


class Grid:

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.pos = self.rng.integers(0, SIZE, 2)
        self.goal = self.rng.integers(0, SIZE, 2)
        return self.obs()

    def obs(self):
        return np.concatenate([self.pos, self.goal]).astype(np.int64)

    def step(self, a):
        self.pos = np.clip(self.pos + MOVES[a], 0, SIZE - 1)
        return self.obs(), float((self.pos == self.goal).all())

    def plan(self, eps):
        if self.rng.random() < eps:
            return int(self.rng.integers(N_ACT))
        nxt = np.clip(self.pos + MOVES, 0, SIZE - 1)
        dist = np.abs(nxt - self.goal).sum(1) + 0.1 * np.abs(nxt - self.goal).max(1)
        best = np.flatnonzero(dist == dist.min())
        return int(self.rng.choice(best))


def collect(n, seed):
    rng = np.random.default_rng(seed)
    env = Grid(rng)
    obs = np.zeros((n, HORIZON, 4), dtype=np.int64)
    act = np.zeros((n, HORIZON), dtype=np.int64)
    rew = np.zeros((n, HORIZON), dtype=np.float32)
    for i in range(n):
        eps = rng.choice([0.05, 0.3, 0.8])
        o = env.reset()
        for t in range(HORIZON):
            a = env.plan(eps)
            obs[i, t], act[i, t] = o, a
            o, rew[i, t] = env.step(a)
    rtg = rew[:, ::-1].cumsum(1)[:, ::-1].copy()
    return torch.from_numpy(obs), torch.from_numpy(act), torch.from_numpy(rtg)


class Layer(nn.Module):
    def __init__(self, dim, heads, drop):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=drop, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(drop))

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, dim=64, heads=4, layers=2, drop=0.05):
        super().__init__()
        self.coord = nn.ModuleList(nn.Embedding(SIZE, dim) for _ in range(4))
        self.act = nn.Embedding(N_ACT, dim)
        self.rtg = nn.Linear(1, dim)
        self.time = nn.Embedding(HORIZON, dim)
        self.norm_in = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(Layer(dim, heads, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, N_ACT)

    def forward(self, rtg, obs, act):
        b, t = act.shape
        time = self.time(torch.arange(t))
        r = self.rtg(rtg.unsqueeze(-1) / HORIZON) + time
        s = sum(emb(obs[..., i]) for i, emb in enumerate(self.coord)) + time
        a = self.act(act) + time
        x = torch.stack([r, s, a], dim=2).reshape(b, 3 * t, -1)
        x = self.norm_in(x)
        mask = torch.ones(3 * t, 3 * t, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x).view(b, t, 3, -1)
        return self.head(x[:, :, 1])


@torch.no_grad()
def rollout(model, episodes, target, seed):
    model.eval()
    total = 0.0
    for e in range(episodes):
        env = Grid(np.random.default_rng(seed + e))
        o = env.reset()
        obs = torch.zeros(1, HORIZON, 4, dtype=torch.long)
        act = torch.zeros(1, HORIZON, dtype=torch.long)
        rtg = torch.zeros(1, HORIZON)
        left = target
        for t in range(HORIZON):
            obs[0, t] = torch.from_numpy(o)
            rtg[0, t] = left
            logits = model(rtg[:, : t + 1], obs[:, : t + 1], act[:, : t + 1])
            a = int(logits[0, -1].argmax())
            act[0, t] = a
            o, r = env.step(a)
            left -= r
            total += r
    model.train()
    return total / episodes


def main():
    torch.manual_seed(0)
    obs, act, rtg = collect(3000, 0)
    v_obs, v_act, v_rtg = collect(150, 1)
    print("mean return in the data", round(rtg[:, 0].mean().item(), 2))
    model = DecisionTransformer()
    steps, warm = 200, 20
    opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=1e-2, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm) * (1 - 0.9 * s / steps))
    for step in range(steps):
        ix = torch.randint(len(obs), (24,))
        logits = model(rtg[ix], obs[ix], act[ix])
        loss = F.cross_entropy(logits.flatten(0, 1), act[ix].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 30 == 0 or step == steps - 1:
            print(f"step {step:4d} action loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        v = model(v_rtg, v_obs, v_act)
        print("held-out action loss", round(F.cross_entropy(v.flatten(0, 1), v_act.flatten()).item(), 4))
    print("return of rollouts at target 5:", rollout(model, 25, 5.0, 1000))


if __name__ == "__main__":
    main()
