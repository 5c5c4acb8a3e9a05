import torch
import torch.nn as nn
import torch.nn.functional as F


class Gated(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.alpha * self.fn(x)


class Attend(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.mha = nn.MultiheadAttention(d, h, batch_first=True)

    def forward(self, x):
        t = x.size(1)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]


class ReZeroLM(nn.Module):
    def __init__(self, states=24, d=64, depth=4, t=32):
        super().__init__()
        self.e, self.p = nn.Embedding(states, d), nn.Embedding(t, d)
        self.body = nn.Sequential(*[Gated(f) for _ in range(depth) for f in (
            Attend(d, 4), nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)))])
        self.o = nn.Linear(d, states)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.o.bias)

    def forward(self, s):
        return self.o(self.body(self.e(s) + self.p.weight[:s.size(1)]))


class Chain:
    def __init__(self, states, seed):
        g = torch.Generator().manual_seed(seed)
        self.g = g
        self.table = torch.softmax(1.6 * torch.randn(states, states, generator=g), -1)

    def floor(self):
        pi = torch.full((len(self.table),), 1.0 / len(self.table))
        for _ in range(200):
            pi = pi @ self.table
        return -(pi[:, None] * self.table * self.table.log()).sum().item()

    def draw(self, n, t):
        s = torch.randint(len(self.table), (n, 1), generator=self.g)
        for _ in range(t):
            s = torch.cat((s, torch.multinomial(self.table[s[:, -1]], 1, generator=self.g)), 1)
        return s


torch.manual_seed(88)
chain = Chain(24, 89)
print(f"entropy of the source {chain.floor():.4f}")
lm = ReZeroLM()
fast = [p for n, p in lm.named_parameters() if n.endswith("alpha")]
rest = [p for n, p in lm.named_parameters() if not n.endswith("alpha")]
opt = torch.optim.Adam([{"params": rest, "lr": 3e-3}, {"params": fast, "lr": 1e-2}], betas=(0.8, 0.95))
for step in range(200):
    s = chain.draw(24, 32)
    loss = F.cross_entropy(lm(s[:, :-1]).transpose(1, 2), s[:, 1:])
    lm.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f}")
