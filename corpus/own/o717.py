import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
np.random.seed(77)
N_ITEMS, MAXLEN, N_USERS = 120, 20, 2500


def sessions(n):
    out = np.zeros((n, MAXLEN + 1), dtype=np.int64)
    for u in range(n):
        g, i = np.random.randint(12), np.random.randint(10)
        for t in range(MAXLEN + 1):
            out[u, t] = 1 + g * 10 + i
            r = np.random.rand()
            if r < 0.70:
                i = (i + 1) % 10
            elif r < 0.85:
                i = (i + 3) % 10
            else:
                g, i = (g + 5) % 12, np.random.randint(10)
    return torch.from_numpy(out)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"] = torch.zeros_like(p)
                if group["weight_decay"]:
                    p.mul_(1 - group["weight_decay"])
                upd = st["m"].mul(b1).add(p.grad, alpha=1 - b1).sign_()
                p.add_(upd, alpha=-group["lr"])
                st["m"].mul_(b2).add_(p.grad, alpha=1 - b2)


class SASRec(nn.Module):
    def __init__(self, d=48, heads=2, blocks=2, drop=0.1):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS + 1, d, padding_idx=0)
        self.pos = nn.Embedding(MAXLEN, d)
        self.ln_a = nn.ModuleList(nn.LayerNorm(d) for _ in range(blocks))
        self.ln_f = nn.ModuleList(nn.LayerNorm(d) for _ in range(blocks))
        self.att = nn.ModuleList(nn.MultiheadAttention(d, heads, drop, batch_first=True) for _ in range(blocks))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Dropout(drop), nn.Linear(2 * d, d))
                                 for _ in range(blocks))
        self.last = nn.LayerNorm(d)
        nn.init.normal_(self.item.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)
        self.register_buffer("causal", torch.ones(MAXLEN, MAXLEN, dtype=torch.bool).triu(1))

    def forward(self, seq):
        x = self.item(seq) + self.pos.weight[None]
        for la, at, lf, ff in zip(self.ln_a, self.att, self.ln_f, self.ffn):
            h = la(x)
            x = x + at(h, h, h, attn_mask=self.causal, need_weights=False)[0]
            x = x + ff(lf(x))
        return self.last(x) @ self.item.weight.t()


train, test = sessions(N_USERS), sessions(400)
net = SASRec()
decay = [p for p in net.parameters() if p.dim() > 1]
plain = [p for p in net.parameters() if p.dim() <= 1]
opt = Lion([{"params": decay, "weight_decay": 0.1}, {"params": plain}], lr=6e-4)

for step in range(1, 361):
    b = train[torch.randint(0, len(train), (48,))]
    logits = net(b[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), b[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 60 == 0:
        net.eval()
        with torch.no_grad():
            lg = net(test[:, :-1])[:, -1]
            hit5 = (lg.topk(5).indices == test[:, -1:]).any(1).float().mean()
            vl = F.cross_entropy(lg, test[:, -1])
        net.train()
        print(f"step {step} loss {loss.item():.3f} test loss {vl.item():.3f} HR@5 {hit5.item():.3f}")
