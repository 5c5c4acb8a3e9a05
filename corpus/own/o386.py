import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data import topics as corpus


def orthogonalize(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.T
    for _ in range(steps):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                u = orthogonalize(p.grad.lerp(buf, group["momentum"]))
                p.add_(u, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


class CausalBlock(nn.Module):
    def __init__(self, d, nh):
        super().__init__()
        self.nh = nh
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)

    def forward(self, x):
        b, t, d = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, t, self.nh, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class GPT(nn.Module):
    def __init__(self, vocab, ctx, d=64, depth=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.wpe = nn.Embedding(ctx, d)
        self.h = nn.ModuleList(CausalBlock(d, 4) for _ in range(depth))
        self.norm = nn.RMSNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        for p in (self.wte.weight, self.wpe.weight, self.lm_head.weight):
            nn.init.normal_(p, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for blk in self.h:
            x = blk(x)
        return F.cross_entropy(self.lm_head(self.norm(x)).flatten(0, 1), targets.flatten())

    def configure_optimizers(self):
        matrices = [p for p in self.h.parameters() if p.ndim == 2]
        vectors = [p for p in self.parameters() if p.ndim < 2]
        return [Muon(matrices, lr=0.02),
                torch.optim.AdamW(vectors, lr=3e-3, betas=(0.8, 0.95), weight_decay=0.0)]


torch.manual_seed(77)
CTX, ITERS = 48, 180
text = "\n".join(corpus.topics.values())
vocab = {c: i for i, c in enumerate(sorted(set(text)))}
data = torch.tensor([vocab[c] for c in text])
model = GPT(len(vocab), CTX)
optimizers = model.configure_optimizers()
base = [[g["lr"] for g in o.param_groups] for o in optimizers]
for it in range(ITERS):
    frac = min(1.0, (ITERS - it) / (0.4 * ITERS))
    for o, lrs in zip(optimizers, base):
        for g, lr in zip(o.param_groups, lrs):
            g["lr"] = lr * frac
    i = torch.randint(len(data) - CTX - 1, (12, 1))
    chunk = data[i + torch.arange(CTX + 1)]
    loss = model(chunk[:, :-1], chunk[:, 1:])
    loss.backward()
    for o in optimizers:
        o.step()
    model.zero_grad(set_to_none=True)
    if it % 15 == 0 or it == ITERS - 1:
        print(f"step:{it}/{ITERS} loss: {loss.item():.4f}")
