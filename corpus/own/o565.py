import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ITEMS, LEN, SPAN = 150, 30, 8


def histories(n, seed):
    r = np.random.default_rng(seed)
    world = np.random.default_rng(123)
    follow = world.integers(0, ITEMS, size=(ITEMS, 3))
    echo = world.permutation(ITEMS)
    out = np.empty((n, LEN + 1), dtype=np.int64)
    out[:, :3] = r.integers(0, ITEMS, size=(n, 3))
    for t in range(3, LEN + 1):
        u = r.random(n)
        nxt = follow[out[:, t - 1], r.integers(0, 3, n)]
        nxt = np.where(u < 0.4, echo[out[:, t - 3]], nxt)
        out[:, t] = np.where(u > 0.93, r.integers(0, ITEMS, n), nxt)
    return torch.from_numpy(out)


def window(T, span):
    i = torch.arange(T)
    gap = i[:, None] - i[None, :]
    return gap.abs() < span


class LocalAttention(nn.Module):
    def __init__(self, d, heads, span):
        super().__init__()
        self.heads, self.span = heads, span
        self.w = nn.Parameter(torch.randn(3, heads, d, d // heads) * d ** -0.5)
        self.o = nn.Parameter(torch.randn(heads, d // heads, d) * d ** -0.5 * 0.5)
        self.bias = nn.Parameter(torch.zeros(heads, 2 * LEN - 1))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = torch.einsum("btd,nhde->nbhte", x, self.w).unbind(0)
        s = torch.einsum("bhie,bhje->bhij", q, k) / q.shape[-1] ** 0.5
        i = torch.arange(T)
        s = s + self.bias[:, i[:, None] - i[None, :] + LEN - 1]
        s = s.masked_fill(~window(T, self.span), float("-inf"))
        return torch.einsum("bhij,bhje,hed->bid", s.softmax(-1), v, self.o)


class Recommender(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.items = nn.Embedding(ITEMS, d)
        nn.init.normal_(self.items.weight, std=d ** -0.5)
        self.att = nn.ModuleList([LocalAttention(d, 4, SPAN) for _ in range(depth)])
        self.ffn = nn.ModuleList([nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 * depth + 1)])
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.drop = nn.Dropout(0.05)

    def forward(self, seq):
        h = self.items(seq) * 8.0
        for n, (a, f) in enumerate(zip(self.att, self.ffn)):
            h = h + self.drop(a(self.norms[2 * n](h)))
            h = h + self.drop(f(self.norms[2 * n + 1](h)))
        return self.scale * self.norms[-1](h) @ self.items.weight.T


class Trainer:
    def __init__(self, model, data, steps=280, batch=48):
        self.model, self.data, self.steps, self.batch = model, data, steps, batch
        self.opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, 3e-3, total_steps=steps, pct_start=0.1)

    def fit(self):
        self.model.train()
        for step in range(self.steps):
            rows = self.data[torch.randint(0, len(self.data), (self.batch,))]
            logits = self.model(rows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, ITEMS), rows[:, 1:].reshape(-1))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            if step % 28 == 0 or step + 1 == self.steps:
                print(f"[{step:3d}] loss={loss.item():.4f}")

    @torch.no_grad()
    def hit_at_3(self, rows):
        self.model.eval()
        top = self.model(rows[:, :-1])[:, -1].topk(3, -1).indices
        return (top == rows[:, -1:]).any(-1).float().mean().item()


torch.manual_seed(17)
trainer = Trainer(Recommender(), histories(8000, 1))
trainer.fit()
print(f"hit@3 of the last item, held-out users: {trainer.hit_at_3(histories(600, 2)):.3f}")
