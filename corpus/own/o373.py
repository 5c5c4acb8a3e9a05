import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LENGTH, MASK = 26, 24, 26
torch.manual_seed(12)
gen = torch.Generator().manual_seed(121)
follow = torch.randperm(VOCAB, generator=gen)


def chains(n):
    rows = [torch.randint(VOCAB, (n,), generator=gen)]
    for _ in range(LENGTH - 1):
        jump = torch.rand(n, generator=gen) < 0.12
        rows.append(torch.where(jump, torch.randint(VOCAB, (n,), generator=gen), follow[rows[-1]]))
    return torch.stack(rows, 1)


def corrupt(x):
    hit = torch.rand(x.shape, generator=gen) < 0.15
    hit[:, 0] |= ~hit.any(1)
    labels = torch.where(hit, x, torch.full_like(x, -100))
    return torch.where(hit, torch.full_like(x, MASK), x), labels


class Rotary(nn.Module):
    def __init__(self, dim, base=1000.0):
        super().__init__()
        self.register_buffer("inv", base ** (-torch.arange(0, dim, 2).float() / dim), persistent=False)

    def forward(self, x):
        t = torch.arange(x.shape[1], dtype=torch.float)
        ang = torch.outer(t, self.inv)
        ang = torch.cat([ang, ang], -1)[None, :, None, :]
        a, b = x.chunk(2, -1)
        return x * ang.cos() + torch.cat([-b, a], -1) * ang.sin()


class SelfAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.rotary = Rotary(d // heads)

    def forward(self, x):
        b, t, d = x.shape
        shape = (b, t, self.heads, d // self.heads)
        q = self.q(x).view(shape).transpose(1, 2)
        k = self.k(x).view(shape).transpose(1, 2)
        v = self.v(x).view(shape).transpose(1, 2)
        q, k = self.rotary(q), self.rotary(k)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Encoder(nn.Module):
    def __init__(self, d=64, heads=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB + 1, d)
        self.attn = nn.ModuleList(SelfAttention(d, heads) for _ in range(depth))
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d)) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.RMSNorm(d) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.RMSNorm(d) for _ in range(depth))
        self.norm = nn.RMSNorm(d)
        self.lm_head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        x = self.emb(ids)
        for attn, ffn, n1, n2 in zip(self.attn, self.ffn, self.n1, self.n2):
            x = x + attn(n1(x))
            x = x + ffn(n2(x))
        return self.lm_head(self.norm(x))


model = Encoder()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=200, pct_start=0.15)
for step in range(1, 201):
    ids, labels = corrupt(chains(48))
    logits = model(ids)
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1), ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step == 1 or step % 20 == 0:
        keep = labels != -100
        acc = (logits.argmax(-1)[keep] == labels[keep]).float().mean()
        print(f"{step:4d}/200 mlm loss {loss.item():.4f} acc {acc:.3f}")
