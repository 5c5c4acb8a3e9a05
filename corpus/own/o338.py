import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class LowRank(nn.Module):
    def __init__(self, base, rank=8, alpha=32):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.a.t() @ self.b.t()) * self.scale


class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.dense = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class Encoder(nn.Module):
    def __init__(self, vocab, length, d=64, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(length, d)
        self.attn = nn.ModuleList(SelfAttention(d, heads) for _ in range(depth))
        self.ffn = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(d, 2 * d), "down": nn.Linear(2 * d, d)})
                                 for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * depth))
        self.score = nn.Linear(d, 2)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[:ids.size(1)]
        for i, (a, f) in enumerate(zip(self.attn, self.ffn)):
            x = self.norm[2 * i](x + a(x))
            x = self.norm[2 * i + 1](x + f["down"](F.gelu(f["up"](x))))
        return self.score(x.mean(1))


def adapt(model):
    for p in model.parameters():
        p.requires_grad = False
    for a in model.attn:
        a.query, a.value = LowRank(a.query), LowRank(a.value)
    for f in model.ffn:
        f["up"], f["down"] = LowRank(f["up"]), LowRank(f["down"])
    model.score.requires_grad_(True)
    return model


def sample(n):
    ids = torch.randint(0, 50, (n, 20))
    small = (ids < 25).float().sum(1)
    return ids, (small > 10).long()


torch.manual_seed(77)
model = adapt(Encoder(50, 20))
trainable = [p for p in model.parameters() if p.requires_grad]
frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
print(f"trainable {sum(p.numel() for p in trainable)} frozen {frozen}")
opt = torch.optim.AdamW(trainable, lr=8e-3, weight_decay=0.0)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, 250)
for step in range(250):
    ids, y = sample(48)
    out = model(ids)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 25 == 0 or step == 249:
        print(f"step {step} loss {loss.item():.4f} acc {(out.argmax(-1) == y).float().mean().item():.3f}")
