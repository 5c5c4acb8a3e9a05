import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(5)

CTX, DIM, HEADS, DEPTH, BS, STEPS = 56, 72, 4, 2, 16, 220

docs = [topics[k] for k in sorted(topics) if len(topics[k]) > 800]
kinds = ["def", "class", "import", "operator", "string"]
chars = sorted(set("".join(docs)))
lut = {c: i for i, c in enumerate(chars)}
tensors = [torch.tensor([lut[c] for c in d]) for d in docs]
tags = torch.tensor([max(range(len(kinds)), key=lambda j: d.count(kinds[j])) for d in docs])


def rotate(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class RMS(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.g * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        hd = DIM // HEADS
        f = 1.0 / 10000 ** (torch.arange(0, hd, 2).float() / hd)
        ang = torch.outer(torch.arange(CTX + 1).float(), f)
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q = rotate(q, self.cos[:t], self.sin[:t])
        k = rotate(k, self.cos[:t], self.sin[:t])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, DIM))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        h = 192
        self.w1 = nn.Linear(DIM, h, bias=False)
        self.w2 = nn.Linear(h, DIM, bias=False)
        self.w3 = nn.Linear(DIM, h, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2, self.ff = RMS(DIM), Attn(), RMS(DIM), SwiGLU()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class TaggedLM(nn.Module):
    def __init__(self, vocab, n_tags):
        super().__init__()
        self.tok = nn.Embedding(vocab, DIM)
        self.tag = nn.Embedding(n_tags, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = RMS(DIM)
        self.head = nn.Linear(DIM, vocab, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.04)

    def forward(self, ids, tag):
        h = torch.cat([self.tag(tag)[:, None], self.tok(ids)], dim=1)
        h = self.norm(self.blocks(h))
        return self.head(h)[:, :-1]


def batch():
    which = torch.randint(len(tensors), (BS,))
    rows = []
    for w in which.tolist():
        d = tensors[w]
        s = torch.randint(len(d) - CTX - 1, (1,)).item()
        rows.append(d[s:s + CTX + 1])
    rows = torch.stack(rows)
    return rows[:, :-1], rows[:, 1:], tags[which]


model = TaggedLM(len(chars), len(kinds))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=STEPS, pct_start=0.1)

for step in range(STEPS):
    x, y, tag = batch()
    logits = model(x, tag)
    loss = F.cross_entropy(logits.transpose(1, 2), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f}")
