import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
VOCAB, CTX, DIM, HEADS = 32, 48, 64, 4
EOD = 0


def document():
    n = int(torch.randint(8, 20, (1,)))
    start = int(torch.randint(1, VOCAB, (1,)))
    stride = int(torch.randint(1, 5, (1,)))
    doc = [(start + i * stride - 1) % (VOCAB - 1) + 1 for i in range(n)]
    return doc + [EOD]


def packed_rows(n):
    rows, segs, poss = [], [], []
    for _ in range(n):
        ids, seg, pos = [], [], []
        s = 0
        while len(ids) < CTX + 1:
            d = document()
            ids += d
            seg += [s] * len(d)
            pos += list(range(len(d)))
            s += 1
        rows.append(ids[:CTX + 1])
        segs.append(seg[:CTX + 1])
        poss.append(pos[:CTX + 1])
    return torch.tensor(rows), torch.tensor(segs), torch.tensor(poss)


def rotary(x, pos):
    half = x.size(-1) // 2
    freq = 1.0 / (1000 ** (torch.arange(half) / half))
    ang = pos[:, None, :, None] * freq
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(DIM, 128, bias=False), nn.Linear(DIM, 128, bias=False), nn.Linear(128, DIM, bias=False)

    def forward(self, x, pos, allowed):
        b, t, _ = x.shape
        h = self.n1(x)
        q, k, v = (w(h).view(b, t, HEADS, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rotary(q, pos), rotary(k, pos), v, attn_mask=allowed[:, None])
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, DIM))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class PackedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.06)

    def forward(self, ids, seg, pos):
        t = ids.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        allowed = causal & (seg[:, :, None] == seg[:, None, :])
        x = self.emb(ids)
        for blk in self.blocks:
            x = blk(x, pos, allowed)
        return self.head(self.norm(x))


def loss_fn(model, ids, seg, pos):
    logits = model(ids[:, :-1], seg[:, :-1], pos[:, :-1])
    target = ids[:, 1:].masked_fill(seg[:, 1:] != seg[:, :-1], -100)
    return F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1), ignore_index=-100)


train, val = packed_rows(1500), packed_rows(150)
model = PackedLM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
STEPS = 250
for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = 3e-3 * min(1, (step + 1) / 20) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))
    idx = torch.randint(0, 1500, (12,))
    loss = loss_fn(model, *(t[idx] for t in train))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 25 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"held-out loss {loss_fn(model, *val).item():.4f}")
