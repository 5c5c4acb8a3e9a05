import re
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(55)
CTX = 96
sentences = []
for k in sorted(topics):
    sentences += [s.strip() for s in re.split(r"(?<=[.:])\s+", re.sub(r"\s+", " ", topics[k])) if 15 < len(s) < 90]
alphabet = sorted(set("".join(sentences)))
tok = {c: i + 1 for i, c in enumerate(alphabet)}
V = len(tok) + 1
docs = [torch.tensor([tok[c] for c in s] + [0]) for s in sentences]
order = torch.randperm(len(docs)).tolist()


def packed(n_rows):
    """returns ids, document number and position inside the document"""
    ids, doc, pos = (torch.zeros(n_rows, CTX, dtype=torch.long) for _ in range(3))
    doc.fill_(-1)
    for r in range(n_rows):
        fill, d = 0, 0
        while fill < CTX:
            s = docs[order[torch.randint(0, len(order), ()).item()]][: CTX - fill]
            ids[r, fill:fill + len(s)] = s
            doc[r, fill:fill + len(s)] = d
            pos[r, fill:fill + len(s)] = torch.arange(len(s))
            fill, d = fill + len(s), d + 1
    return ids, doc, pos


def targets(ids, doc, k):
    t = torch.full_like(ids, -100)
    same = doc[:, k:] == doc[:, :-k]
    t[:, :-k] = torch.where(same, ids[:, k:], -100)
    return t


class Net(nn.Module):
    def __init__(self, d=64, heads=4, layers=2):
        super().__init__()
        self.heads = heads
        self.te, self.pe = nn.Embedding(V, d), nn.Embedding(CTX, d)
        self.qkv = nn.ModuleList([nn.Linear(d, 3 * d) for _ in range(layers)])
        self.prj = nn.ModuleList([nn.Linear(d, d) for _ in range(layers)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d)) for _ in range(layers)])
        self.n1 = nn.ModuleList([nn.LayerNorm(d) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.LayerNorm(d) for _ in range(layers)])
        self.h1, self.h2 = nn.Linear(d, V), nn.Sequential(nn.LayerNorm(d), nn.Linear(d, V))

    def forward(self, ids, doc, pos):
        B, T = ids.shape
        mask = (doc[:, :, None] == doc[:, None, :]) & torch.ones(T, T, dtype=torch.bool).tril()
        x = self.te(ids) + self.pe(pos)
        for qkv, prj, ff, n1, n2 in zip(self.qkv, self.prj, self.ff, self.n1, self.n2):
            q, k, v = qkv(n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
            x = x + prj(a.transpose(1, 2).reshape(B, T, -1))
            x = x + ff(n2(x))
        return self.h1(x), self.h2(x)


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
ACC, MICRO, STEPS = 2, 6, 100
print("documents", len(docs), "vocab", V)
for step in range(STEPS):
    micro = [packed(MICRO) for _ in range(ACC)]
    n1 = sum((targets(i, d, 1) >= 0).sum() for i, d, _ in micro)
    n2 = sum((targets(i, d, 2) >= 0).sum() for i, d, _ in micro)
    opt.zero_grad()
    s1 = s2 = 0.0
    for ids, doc, pos in micro:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a, b = net(ids, doc, pos)
        l1 = F.cross_entropy(a.float().flatten(0, 1), targets(ids, doc, 1).flatten(), ignore_index=-100, reduction="sum") / n1
        l2 = F.cross_entropy(b.float().flatten(0, 1), targets(ids, doc, 2).flatten(), ignore_index=-100, reduction="sum") / n2
        (l1 + 0.5 * l2).backward()
        s1, s2 = s1 + l1.item(), s2 + l2.item()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step} loss {s1 + 0.5 * s2:.4f} next {s1:.4f} next-but-one {s2:.4f}")
