import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
PAD, BOS, EQ, EOS = 0, 1, 2, 3
BASE = 4
ALPHABET = 16


def example(max_len, g):
    n = int(torch.randint(3, max_len + 1, (1,), generator=g)) if max_len > 3 else 3
    a = torch.randint(0, ALPHABET, (n,), generator=g)
    r = torch.sort(a).values
    prompt = [BOS] + (a + BASE).tolist() + [EQ]
    return prompt, (r + BASE).tolist() + [EOS]


def collate(items):
    width = max(len(p) + len(r) for p, r in items)
    ids = torch.full((len(items), width), PAD)
    labels = torch.full((len(items), width), -100)
    for i, (p, r) in enumerate(items):
        ids[i, width - len(p) - len(r):] = torch.tensor(p + r)
        labels[i, width - len(r):] = torch.tensor(r)
    return ids, labels, ids.ne(PAD)


def build_bias(keep, dtype):
    t = keep.shape[1]
    causal = torch.ones(t, t).tril().bool()
    visible = causal[None] & keep[:, None, :]
    bias = torch.zeros(visible.shape, dtype=dtype)
    return bias.masked_fill(~visible, torch.finfo(dtype).min)[:, None]


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        w = q @ k.transpose(-1, -2) * (d // self.h) ** -0.5 + bias
        return self.c_proj((torch.softmax(w, -1) @ v).transpose(1, 2).reshape(b, t, d))


class GPT(nn.Module):
    def __init__(self, vocab, d=64, h=4, n=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(40, d)
        self.attn = nn.ModuleList([Attn(d, h) for _ in range(n)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)])
        self.ln = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 * n + 1)])
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids, keep):
        where = (keep.long().cumsum(1) - 1).clamp(min=0)
        x = self.tok(ids) + self.pos(where)
        bias = build_bias(keep, x.dtype)
        for i, (a, m) in enumerate(zip(self.attn, self.mlp)):
            x = x + a(self.ln[2 * i](x), bias)
            x = x + m(self.ln[2 * i + 1](x))
        return self.head(self.ln[-1](x))


def sft_loss(model, batch):
    ids, labels, keep = batch
    logits = model(ids, keep)[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


g = torch.Generator().manual_seed(6)
model = GPT(BASE + ALPHABET)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(360):
    longest = 3 if step < 60 else 8
    loss = sft_loss(model, collate([example(longest, g) for _ in range(32)]))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 30 == 0:
        print(f"{step} {'short' if step < 60 else 'mixed'} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    ids, labels, keep = collate([example(8, g) for _ in range(300)])
    pred = model(ids, keep)[:, :-1].argmax(-1)
    m = labels[:, 1:] != -100
    print(f"held-out response token accuracy {(pred == labels[:, 1:])[m].float().mean().item():.3f}")
