import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
EOT, V, PACK = 0, 33, 64
g = torch.Generator().manual_seed(60)


def document():
    n = int(torch.randint(4, 9, (1,), generator=g))
    s = torch.randint(1, V - 1, (n,), generator=g)
    return torch.cat([s, torch.tensor([V - 1]), s, torch.tensor([EOT])])


def packed(rows):
    ids = torch.zeros(rows, PACK + 1, dtype=torch.long)
    doc = torch.zeros(rows, PACK + 1, dtype=torch.long)
    pos = torch.zeros(rows, PACK + 1, dtype=torch.long)
    for r in range(rows):
        i, d = 0, 0
        while i <= PACK:
            x = document()[: PACK + 1 - i]
            ids[r, i:i + len(x)] = x
            doc[r, i:i + len(x)] = d
            pos[r, i:i + len(x)] = torch.arange(len(x))
            i, d = i + len(x), d + 1
    return ids, doc, pos


class PackedLM(nn.Module):
    def __init__(self, d=64, h=4, n=2):
        super().__init__()
        self.h = h
        self.tok, self.pos = nn.Embedding(V, d), nn.Embedding(24, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d)) for _ in range(n))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * n + 1))
        self.head = nn.Linear(d, V)

    def forward(self, ids, doc, pos):
        b, t = ids.shape
        allow = (doc[:, :, None] == doc[:, None]) & torch.ones(t, t).tril().bool()
        x = self.tok(ids) + self.pos(pos)
        for i in range(len(self.qkv)):
            q, k, v = (z.view(b, t, self.h, -1).transpose(1, 2) for z in self.qkv[i](self.norms[2 * i](x)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=allow[:, None])
            x = x + self.out[i](a.transpose(1, 2).reshape(b, t, -1))
            x = x + self.mlp[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


model = PackedLM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
CYCLE = [60, 110, 180]
edges = [0, 60, 170, 350]
for step in range(350):
    c = max(i for i in range(3) if step >= edges[i])
    frac = (step - edges[c]) / CYCLE[c]
    for group in opt.param_groups:
        group["lr"] = 1e-5 + 0.5 * (4e-3 - 1e-5) * (1 + math.cos(math.pi * frac))
    ids, doc, pos = packed(10)
    labels = ids[:, 1:].masked_fill(doc[:, 1:] != doc[:, :-1], -100)
    logits = model(ids[:, :-1], doc[:, :-1], pos[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 25 == 0:
        print(f"step {step} cycle {c} lr {opt.param_groups[0]['lr']:.5f} smoothed loss {loss.item():.4f}")
with torch.no_grad():
    ids, doc, pos = packed(60)
    pred = model(ids[:, :-1], doc[:, :-1], pos[:, :-1]).argmax(-1)
    after = torch.zeros_like(ids[:, :-1]).bool()
    for r in range(len(ids)):
        for j in range(PACK):
            d = doc[r, j]
            after[r, j] = bool(((ids[r, :j + 1] == V - 1) & (doc[r, :j + 1] == d)).any()) and bool(doc[r, j + 1] == d)
    print(f"held-out accuracy on copied tokens {(pred == ids[:, 1:])[after].float().mean().item():.3f}")
