import math, re, sys
import torch
from torch import nn
from torch.nn import functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(2024)
DIM, LAYERS, HEADS, KV_HEADS, HIDDEN = (64, 2, 4, 2, 160)
SEQ, BATCH, STEPS = (48, 16, 340)
PEAK, FLOOR, WARM = (0.001, 0.0001, 25)
SOFTCAP = 30.0
raw = "\n".join((topics[k] for k in sorted(topics))).encode("ascii", "ignore")
raw = re.sub(b"[ ]{2,}", b" ", raw)
corpus = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
cut = len(corpus) * 95 // 100
train_ids, test_ids = (corpus[:cut], corpus[cut:])


def windows(src, gen, n=BATCH):
    start = torch.randint(0, len(src) - SEQ - 1, (n, 1), generator=gen)
    w = src[start + torch.arange(SEQ + 1)]
    return (w[:, :-1], w[:, 1:])


def rope_table(n, d):
    f = 1.0 / 10000 ** (torch.arange(0, d, 2) / d)
    a = torch.outer(torch.arange(n), f)
    return (a.cos(), a.sin())


def apply_rope(x, cos, sin):
    x1, x2 = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), -1).flatten(-2).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-05)
        return y.to(x.dtype) * self.g


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        hd = DIM // HEADS
        self.hd = hd
        self.n1, self.n2, self.qn, self.kn = (Norm(DIM), Norm(DIM), Norm(hd), Norm(hd))
        self.wq = nn.Linear(DIM, DIM, bias=False)
        self.wk = nn.Linear(DIM, KV_HEADS * hd, bias=False)
        self.wv = nn.Linear(DIM, KV_HEADS * hd, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)
        self.w13 = nn.Linear(DIM, 2 * HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        h = self.n1(x)
        q = apply_rope(self.qn(self.wq(h).view(B, T, HEADS, -1)).transpose(1, 2), cos, sin)
        k = apply_rope(self.kn(self.wk(h).view(B, T, KV_HEADS, -1)).transpose(1, 2), cos, sin)
        v = self.wv(h).view(B, T, KV_HEADS, -1).transpose(1, 2)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(a.transpose(1, 2).reshape(B, T, DIM))
        g, u = self.w13(self.n2(x)).chunk(2, -1)
        return x + self.w2(F.silu(g) * u)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(128, DIM)
        self.layers = nn.ModuleList((Layer() for _ in range(LAYERS)))
        self.norm = Norm(DIM)
        self.out = nn.Linear(DIM, 128, bias=False)
        cos, sin = rope_table(SEQ, DIM // HEADS)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids):
        x = self.emb(ids)
        for l in self.layers:
            x = l(x, self.cos, self.sin)
        logits = self.out(self.norm(x)).float()
        return SOFTCAP * torch.tanh(logits / SOFTCAP)


class MasterAdamW:
    def __init__(self, model, betas=(0.9, 0.95), eps=1e-08, wd=0.05):
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.master = [p.detach().clone() for p in self.params]
        self.m = [torch.zeros(p.shape, dtype=torch.float32) for p in self.params]
        self.v = [torch.zeros(p.shape, dtype=torch.float32) for p in self.params]
        self.b1, self.b2, self.eps, self.wd, self.t = (*betas, eps, wd, 0)

    @torch.no_grad()
    def step(self, lr, max_norm=1.0):
        self.t += 1
        grads = [p.grad.float() for p in self.params]
        norm = torch.sqrt(sum((g.square().sum() for g in grads)))
        coef = (max_norm / (norm + 1e-06)).clamp(max=1.0)
        c1, c2 = (1 - self.b1**self.t, 1 - self.b2**self.t)
        for p, w, g, m, v in zip(self.params, self.master, grads, self.m, self.v):
            g = g * coef
            m.lerp_(g, 1 - self.b1)
            v.mul_(self.b2).addcmul_(g, g, value=1 - self.b2)
            upd = m / c1 / ((v / c2).sqrt() + self.eps)
            if w.dim() > 1:
                w.mul_(1 - lr * self.wd)
            w.sub_(lr * upd)
            p.copy_(w)
            p.grad = None
        return norm.item()


def rate(i):
    if i < WARM:
        return PEAK * (i + 1) / WARM
    return FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * (i - WARM) / (STEPS - WARM)))


@torch.no_grad()
def test_loss(model):
    g = torch.Generator().manual_seed(5)
    return (
        sum(
            (
                F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
                for x, y in (windows(test_ids, g, 32) for _ in range(3))
            )
        )
        / 3
    )


def main():
    model = Model().to(torch.bfloat16)
    optim = MasterAdamW(model)
    gen = torch.Generator().manual_seed(1)
    for i in range(STEPS):
        x, y = windows(train_ids, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        gn = optim.step(rate(i))
        if i % 50 == 0 or i == STEPS - 1:
            print(f"{i:5d}  loss {loss.item():.4f}  |g| {gn:.3f}  lr {rate(i):.2e}")
    nll = test_loss(model)
    print(f"held-out loss {nll:.4f}  ({nll / math.log(2):.3f} bits per byte)")


if __name__ == "__main__":
    sys.exit(main())
