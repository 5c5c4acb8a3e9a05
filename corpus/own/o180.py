import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(77)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"] = torch.zeros_like(p)
                m = st["m"]
                p.mul_(1 - group["weight_decay"])
                u = m.mul(b1).add(p.grad, alpha=1 - b1).sign_()
                p.add_(u, alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.g * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.gate = nn.Linear(d, 2 * d, bias=False)
        self.up = nn.Linear(d, 2 * d, bias=False)
        self.down = nn.Linear(2 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


corpus = "".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")[:250000]
stream = torch.tensor(list(corpus), dtype=torch.long)
d, t, b = 80, 48, 20
net = nn.ModuleDict({
    "wte": nn.Embedding(128, d),
    "wpe": nn.Embedding(t, d),
    "h": nn.Sequential(Block(d, 5), Block(d, 5)),
    "nf": RMSNorm(d),
    "head": nn.Linear(d, 128, bias=False),
})
nn.init.normal_(net["wte"].weight, std=0.1)
nn.init.normal_(net["wpe"].weight, std=0.1)
opt = Lion(net.parameters(), lr=8e-4, betas=(0.9, 0.98), weight_decay=0.1)

for step in range(1, 129):
    i = torch.randint(len(stream) - t - 1, (b, 1)) + torch.arange(t + 1)
    seq = stream[i]
    x = net["wte"](seq[:, :-1]) + net["wpe"].weight
    logits = net["head"](net["nf"](net["h"](x)))
    loss = F.cross_entropy(logits.transpose(1, 2), seq[:, 1:])
    net.zero_grad()
    loss.backward()
    opt.step()
    if step == 1 or step % 16 == 0:
        print(f"{step:4d} | {loss.item():.4f}")
