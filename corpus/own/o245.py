import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer


class DecoupledAdam(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.05):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["t"] += 1
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                m_hat = s["m"] / (1 - b1 ** s["t"])
                v_hat = s["v"] / (1 - b2 ** s["t"])
                p.mul_(1 - group["weight_decay"])
                p.addcdiv_(m_hat, v_hat.sqrt().add_(group["eps"]), value=-group["lr"])


CHARS = "0123456789+= "
ID = {c: i for i, c in enumerate(CHARS)}
torch.manual_seed(88)
pairs = torch.Generator().manual_seed(89)


def sums(n):
    a, b = torch.randint(0, 50, (2, n), generator=pairs).tolist()
    lines = [f"{x:02d}+{y:02d}={str(x + y).zfill(3)[::-1]} " for x, y in zip(a, b)]
    return torch.tensor([[ID[c] for c in l] for l in lines])


class Adder(nn.Module):
    def __init__(self, d=64, heads=4, depth=2, length=12):
        super().__init__()
        self.tok = nn.Embedding(len(CHARS), d)
        self.pos = nn.Embedding(length, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, 3 * d, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, len(CHARS))

    def forward(self, ids):
        t = ids.size(1)
        x = self.tok(ids) + self.pos.weight[:t]
        mask = torch.full((t, t), -math.inf).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.out(self.norm(x))


model = Adder()
optimizer = DecoupledAdam(model.parameters(), lr=2e-3, weight_decay=0.1)
for step in range(300):
    rows = sums(40)
    logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits[:, 5:].flatten(0, 1), rows[:, 6:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 299:
        exact = (logits[:, 5:].argmax(-1) == rows[:, 6:]).all(1).float().mean().item()
        print(f"step {step:3d} answer loss {loss.item():.4f} exact {exact:.2f}")
