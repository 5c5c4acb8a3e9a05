import pydoc_data.topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(99)
text = "".join(v for _, v in sorted(pydoc_data.topics.topics.items()))[:250_000].lower()
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
cut = int(len(ids) * 0.92)
T, B, D, H, STEPS = 48, 16, 96, 4, 260


class Ternary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        scale = w.abs().mean().clamp(min=1e-5)
        return (w / scale).round().clamp(-1, 1) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad


class BitLinear(nn.Linear):
    def forward(self, x):
        s = 127.0 / x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-5)
        xq = x + ((x * s).round() / s - x).detach()
        return F.linear(xq, Ternary.apply(self.weight), self.bias)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = BitLinear(D, 3 * D, bias=False), BitLinear(D, D, bias=False)
        self.up, self.down = BitLinear(D, 4 * D, bias=False), BitLinear(4 * D, D, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        x = x + self.o(a)
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class Model(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(D)
        self.head = nn.Linear(D, vocab, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        h = self.emb(x) + self.pos[: x.size(1)]
        for blk in self.blocks:
            h = blk(h)
        return self.head(self.norm(h))


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, b1=0.9, b2=0.98, wd=0.1):
        super().__init__(params, dict(lr=lr, b1=b1, b2=b2, wd=wd))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = m.mul(g["b1"]).add_(p.grad, alpha=1 - g["b1"]).sign_()
                p.mul_(1 - g["lr"] * g["wd"]).add_(update, alpha=-g["lr"])
                m.mul_(g["b2"]).add_(p.grad, alpha=1 - g["b2"])


def get(split):
    lo, hi = (0, cut) if split == "train" else (cut, len(ids))
    i = torch.randint(lo, hi - T - 1, (B,))
    return torch.stack([ids[j : j + T] for j in i]), torch.stack([ids[j + 1 : j + T + 1] for j in i])


def objective(logits, y):
    ce = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    z = logits.logsumexp(-1).square().mean()
    return ce, 1e-4 * z


model = Model(len(chars))
opt = Lion(model.parameters(), lr=2e-3)
for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = 2e-3 * min(1.0, (step + 1) / 20) * min(1.0, (STEPS - step) / 100)
    x, y = get("train")
    ce, z = objective(model(x), y)
    opt.zero_grad()
    (ce + z).backward()
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} ce {ce.item():.4f} z {z.item():.4f}")
model.eval()
with torch.no_grad():
    v = sum(objective(model(x), y)[0].item() for x, y in (get("val") for _ in range(10))) / 10
print(f"held-out ce {v:.4f}")
