import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(18)
ITEMS, STEPS_BACK, GROUPS = 160, 12, 8


class MixedAdam:
    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.betas, self.eps = lr, betas, eps
        self.m = [torch.zeros_like(p, dtype=torch.float32) for p in self.params]
        self.v = [torch.zeros_like(p, dtype=torch.float32) for p in self.params]
        self.t = 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        master = [p.detach().float() for p in self.params]
        for p, w, m, v in zip(self.params, master, self.m, self.v):
            if p.grad is None:
                continue
            g = p.grad.float()
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            mh = m / (1 - b1 ** self.t)
            vh = v / (1 - b2 ** self.t)
            w.sub_(self.lr * mh / (vh.sqrt() + self.eps))
            p.copy_(w)


class SessionModel(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.item = nn.Embedding(ITEMS, d)
        self.place = nn.Embedding(STEPS_BACK, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(d, GROUPS)

    def forward(self, x):
        h = self.item(x) + self.place.weight
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1)).float()


group_of = torch.randint(GROUPS, (ITEMS,))
members = [(group_of == g).nonzero().squeeze(1) for g in range(GROUPS)]


def sessions(n):
    y = torch.randint(GROUPS, (n,))
    x = torch.randint(ITEMS, (n, STEPS_BACK))
    for i, g in enumerate(y.tolist()):
        own = torch.rand(STEPS_BACK) < 0.6
        x[i, own] = members[g][torch.randint(len(members[g]), (int(own.sum()),))]
    return x, y


model = SessionModel().to(torch.bfloat16)
optimizer = MixedAdam(model.parameters(), lr=2e-4)
history = []
for step in range(240):
    x, y = sessions(48)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.item())
    if step % 20 == 0 or step == 239:
        tail = history[-12:]
        print(f"step {step} loss {sum(tail) / len(tail):.4f} (uniform {math.log(GROUPS):.3f})")
