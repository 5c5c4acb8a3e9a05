import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import Optimizer
import inspect, http.client, urllib.request, smtplib, imaplib, ftplib

torch.manual_seed(44)


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - group["weight_decay"])
                direction = (m * b1 + p.grad * (1 - b1)).sign_()
                p.add_(direction, alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class MixerBlock(nn.Module):
    def __init__(self, d, t):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = nn.Parameter(torch.randn(t, t) * 0.05)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d))
        self.register_buffer("lower", torch.tril(torch.ones(t, t)))

    def forward(self, x):
        x = x + torch.einsum("ts,bsd->btd", self.mix * self.lower, self.n1(x))
        return x + self.ff(self.n2(x))


class ByteMixer(nn.Module):
    def __init__(self, d=72, t=32, depth=3):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.blocks = nn.Sequential(*[MixerBlock(d, t) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 128)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.emb(x))))


raw = "".join(inspect.getsource(m) for m in (http.client, urllib.request, smtplib, imaplib, ftplib))
stream = torch.tensor(list(raw.encode("ascii", "replace")))
net = ByteMixer()
opt = Lion(net.parameters(), lr=1e-3, weight_decay=0.1)
log = []
for step in range(200):
    at = torch.randint(len(stream) - 33, (20,))
    rows = stream[at[:, None] + torch.arange(33)]
    loss = F.cross_entropy(net(rows[:, :-1]).reshape(-1, 128), rows[:, 1:].reshape(-1))
    net.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
    if step % 20 == 19 or step == 0:
        print(f"{step + 1} steps, loss {sum(log[-10:]) / len(log[-10:]):.4f}")
