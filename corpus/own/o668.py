import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(1)

SEP = 0
SEQ, WINDOW, BATCH, STEPS = 128, 48, 12, 240


def load_documents():
    docs = []
    for key in sorted(topics):
        for para in topics[key].split("\n\n"):
            raw = para.strip().encode("ascii", "ignore")
            if 30 <= len(raw) <= 600:
                docs.append(raw)
    return docs


def pack(docs):
    ids, doc = [], []
    for i, raw in enumerate(docs):
        ids.append(np.frombuffer(bytes([SEP]) + raw, dtype=np.uint8))
        doc.append(np.full(len(raw) + 1, i))
    return torch.from_numpy(np.concatenate(ids).astype(np.int64)), torch.from_numpy(np.concatenate(doc))


def build_mask(doc):
    pos = torch.arange(doc.size(1))
    dist = pos[:, None] - pos[None, :]
    same_doc = doc[:, :, None] == doc[:, None, :]
    near = dist < WINDOW
    return (same_doc & near).unsqueeze(1)


def rope_tables(dim, length):
    freq = 1.0 / 1000 ** (torch.arange(0, dim, 2) / dim)
    ang = torch.arange(length)[:, None] * freq
    return ang.cos(), ang.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.o = nn.Linear(d, d, bias=False)
        cos, sin = rope_tables(d // heads, SEQ)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, self.cos[:T], self.sin[:T]), rotate(k, self.cos[:T], self.sin[:T])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_a, self.attn = nn.LayerNorm(d), Attention(d, heads)
        self.ln_f = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x, mask):
        x = x + self.attn(self.ln_a(x), mask)
        return x + self.ff(self.ln_f(x))


class ByteLM(nn.Module):
    def __init__(self, d=64, heads=4, depth=3):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.ln = nn.LayerNorm(d)
        nn.init.normal_(self.emb.weight, std=d ** -0.5)

    def forward(self, ids, doc):
        mask = build_mask(doc)
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h, mask)
        return F.linear(self.ln(h), self.emb.weight)


def get_batch(ids, doc, gen):
    start = torch.randint(0, len(ids) - SEQ - 1, (BATCH,), generator=gen)
    take = start[:, None] + torch.arange(SEQ)
    y = ids[take + 1]
    return ids[take], y.masked_fill(y == SEP, -100), doc[take]


docs = load_documents()
order = np.random.default_rng(0).permutation(len(docs))
docs = [docs[i] for i in order]
cut = len(docs) // 20
valid, train = pack(docs[:cut]), pack(docs[cut:])

model = ByteLM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
sched = torch.optim.lr_scheduler.SequentialLR(opt, [
    torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, 20),
    torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS - 20, 2e-4)], [20])
gen = torch.Generator().manual_seed(2)
for step in range(1, STEPS + 1):
    x, y, doc = get_batch(*train, gen)
    loss = F.cross_entropy(model(x, doc).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 20 == 0:
        print(f"step {step:4d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")

with torch.no_grad():
    total = sum(F.cross_entropy(model(x, d).flatten(0, 1), y.flatten()).item()
                for x, y, d in (get_batch(*valid, gen) for _ in range(8)))
print(f"held-out bits per byte {total / 8 / np.log(2):.3f}")
