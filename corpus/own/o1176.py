import re

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(3)

raw = "\n".join(topics[k] for k in sorted(topics))
docs = [re.sub(r"\s+", " ", d).strip() for d in raw.split("\n\n")]
docs = [d[:100] for d in docs if len(d) >= 30]
chars = sorted(set("".join(docs)))
BOS = len(chars)
stoi = {c: i for i, c in enumerate(chars)}
encoded = [[BOS] + [stoi[c] for c in d] for d in docs]
order = torch.randperm(len(encoded)).tolist()
encoded = [encoded[i] for i in order]
held, train = encoded[:200], encoded[200:]
WINDOW = 128


def pack(documents):
    rows, row, ids, place = [], [], [], []
    for d in documents:
        if len(row) + len(d) > WINDOW + 1:
            fill = WINDOW + 1 - len(row)
            rows.append((row + [BOS] * fill, ids + [-1] * fill, place + [0] * fill))
            row, ids, place = [], [], []
        n = (ids[-1] + 1) if ids else 0
        row = row + d
        ids = ids + [n] * len(d)
        place = place + list(range(len(d)))
    toks = torch.tensor([r[0] for r in rows])
    segs = torch.tensor([r[1] for r in rows])
    poss = torch.tensor([r[2] for r in rows])
    labels = toks[:, 1:].clone()
    labels[(segs[:, 1:] != segs[:, :-1]) | (segs[:, 1:] < 0)] = -100
    return toks[:, :-1], segs[:, :-1], poss[:, :-1], labels


def document_mask(segs):
    same = segs[:, :, None] == segs[:, None, :]
    return same.tril()[:, None]


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.up, self.gate = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * d, bias=False)
        self.down = nn.Linear(3 * d, d, bias=False)

    def forward(self, x, mask):
        B, T, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        n = self.n2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class PackedLM(nn.Module):
    def __init__(self, vocab, d=80, h=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(WINDOW, d)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, segs, poss):
        x = self.tok(ids) + self.pos(poss)
        mask = document_mask(segs)
        for b in self.blocks:
            x = b(x, mask)
        return self.head(self.norm(x))


model = PackedLM(len(chars) + 1)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
steps = 480
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=steps, pct_start=0.08)

step, epoch = 0, 0
while step < steps:
    perm = torch.randperm(len(train)).tolist()
    ids, segs, poss, labels = pack([train[i] for i in perm])
    for b in torch.randperm(len(ids)).split(8):
        loss = F.cross_entropy(
            model(ids[b], segs[b], poss[b]).flatten(0, 1), labels[b].flatten(), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 20 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        if step == steps:
            break
    epoch += 1

model.eval()
with torch.no_grad():
    ids, segs, poss, labels = pack(held)
    val = F.cross_entropy(model(ids, segs, poss).flatten(0, 1), labels.flatten(), ignore_index=-100)
    print(f"held-out loss {val.item():.4f}")
    cut = 24
    prompt = torch.tensor([d[:cut] for d in held])
    answer = torch.tensor([d[cut] for d in held])
    out = model(prompt, torch.zeros_like(prompt), torch.arange(cut).expand_as(prompt))[:, -1]
    hit = (out.argmax(-1) == answer).float().mean().item()
    print(f"prompt continuation: nll {F.cross_entropy(out, answer).item():.4f} top1 {hit:.3f}")
