import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MOVES = np.array([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]])


class GridEnv:
    """6x6 grid with a goal; -1 per step away from the goal (scaled by distance), horizon 8."""
    size, horizon = 6, 8

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.pos = self.rng.integers(0, self.size, 2)
        self.goal = self.rng.integers(0, self.size, 2)
        return self.obs()

    def obs(self):
        return np.concatenate([self.pos, self.goal]).astype(np.float32) / self.size - 0.5

    def expert(self):
        d = self.goal - self.pos
        if not d.any():
            return 0
        axis = int(abs(d[1]) >= abs(d[0]))
        return [(3 if d[0] > 0 else 4), (1 if d[1] > 0 else 2)][axis]

    def step(self, a):
        self.pos = np.clip(self.pos + MOVES[a], 0, self.size - 1)
        return self.obs(), -float(np.abs(self.goal - self.pos).sum()) / 10


def collect(n, rng):
    env = GridEnv(rng)
    S, A, R = [], [], []
    for _ in range(n):
        eps = rng.choice([0.05, 0.4, 0.9])
        s, ss, aa, rr = env.reset(), [], [], []
        for _ in range(env.horizon):
            a = env.expert() if rng.random() > eps else int(rng.integers(0, 5))
            ss.append(s); aa.append(a)
            s, r = env.step(a)
            rr.append(r)
        S.append(ss); A.append(aa); R.append(rr)
    R = np.array(R, np.float32)
    rtg = R[:, ::-1].cumsum(1)[:, ::-1].copy()
    return torch.tensor(np.array(S)), torch.tensor(A), torch.tensor(rtg)


@dataclass
class Config:
    dim: int = 48
    depth: int = 2
    heads: int = 4
    horizon: int = 8
    batch: int = 48
    steps: int = 300
    lr: float = 1.5e-3


class DecisionTransformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb_r = nn.Linear(1, c.dim)
        self.emb_s = nn.Linear(4, c.dim)
        self.emb_a = nn.Embedding(5, c.dim)
        self.emb_t = nn.Embedding(c.horizon, c.dim)
        self.ln = nn.LayerNorm(c.dim)
        lyr = nn.TransformerEncoderLayer(c.dim, c.heads, 4 * c.dim, dropout=0.0, activation="gelu",
                                         batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(lyr, c.depth, norm=nn.LayerNorm(c.dim), enable_nested_tensor=False)
        self.predict_action = nn.Linear(c.dim, 5)

    def forward(self, rtg, states, actions):
        B, L = actions.shape
        te = self.emb_t(torch.arange(L))[None]
        tok = torch.stack([self.emb_r(rtg.unsqueeze(-1)) + te,
                           self.emb_s(states) + te,
                           self.emb_a(actions) + te], dim=2).reshape(B, 3 * L, -1)
        mask = nn.Transformer.generate_square_subsequent_mask(3 * L)
        x = self.body(self.ln(tok), mask=mask, is_causal=True)
        x = x.reshape(B, L, 3, -1).permute(0, 2, 1, 3)
        return self.predict_action(x[:, 2])


@torch.no_grad()
def rollout(model, target, episodes, seed):
    env = GridEnv(np.random.default_rng(seed))
    model.eval()
    total, hits = 0.0, 0
    for _ in range(episodes):
        s = env.reset()
        states, actions, rtg = [s], [], [target * np.abs(env.goal - env.pos).sum() / 10]
        for t in range(env.horizon):
            a_in = torch.tensor([actions + [0]])
            logits = model(torch.tensor([rtg], dtype=torch.float32), torch.tensor(np.array([states])), a_in)
            a = int(logits[0, -1].argmax())
            s, r = env.step(a)
            total += r
            actions.append(a); states.append(s); rtg.append(min(rtg[-1] - r, 0.0))
            if t == env.horizon - 1:
                break
        hits += int((env.pos == env.goal).all())
    model.train()
    return total / episodes, hits / episodes


class Trainer:
    def __init__(self, cfg, data):
        self.cfg, self.data = cfg, data
        self.model = DecisionTransformer(cfg)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, weight_decay=1e-4)

    def train(self):
        S, A, R = self.data
        t0 = time.time()
        for it in range(1, self.cfg.steps + 1):
            for g in self.opt.param_groups:
                g["lr"] = self.cfg.lr * min(1.0, it / 40)
            i = torch.randint(0, len(S), (self.cfg.batch,))
            logits = self.model(R[i], S[i], A[i])
            loss = F.cross_entropy(logits.reshape(-1, 5), A[i].reshape(-1))
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.opt.step()
            if it == 1 or it % 30 == 0:
                acc = (logits.argmax(-1) == A[i]).float().mean().item()
                print(f"iter {it:4d}: loss {loss.item():.4f} action acc {acc:.3f}  {time.time() - t0:.1f}s")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = collect(2000, np.random.default_rng(0))
    print(f"logged episodes: mean return {data[2][:, 0].mean():.3f}")
    tr = Trainer(Config(), data)
    tr.train()
    ret, hit = rollout(tr.model, target=-3.0, episodes=40, seed=9)
    print(f"rollout: mean return {ret:.3f}  goal reached {hit:.2f}")
