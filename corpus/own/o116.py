import random
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
cfg = SimpleNamespace(d=64, heads=4, layers=2, max_len=80, token_budget=320, accum=3, updates=110, lr=2e-3, seed=17)
random.seed(cfg.seed)
torch.manual_seed(cfg.seed)

lines = []
for key in sorted(topics):
    for line in topics[key].split("\n"):
        line = line.strip()
        if 8 <= len(line) < cfg.max_len - 2:
            lines.append(line)
alphabet = ["<pad>", "<bos>", "<eos>"] + sorted(set("".join(lines)))
PAD, BOS, EOS = 0, 1, 2
table = {c: i for i, c in enumerate(alphabet)}
encoded = [[BOS] + [table[c] for c in s] + [EOS] for s in lines]


def micro_batches():
    while True:
        pool = random.sample(encoded, 400)
        pool.sort(key=len)
        groups, cur = [], []
        for seq in pool:
            if cur and (len(cur) + 1) * len(seq) > cfg.token_budget:
                groups.append(cur)
                cur = []
            cur.append(seq)
        random.shuffle(groups)
        for g in groups:
            width = max(map(len, g))
            yield torch.tensor([s + [PAD] * (width - len(s)) for s in g])


class LineLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(len(alphabet), cfg.d, padding_idx=PAD)
        self.pos = nn.Embedding(cfg.max_len, cfg.d)
        layer = nn.TransformerEncoderLayer(cfg.d, cfg.heads, 3 * cfg.d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.layers, norm=nn.LayerNorm(cfg.d), enable_nested_tensor=False)
        self.head = nn.Linear(cfg.d, len(alphabet))

    def forward(self, x):
        n = x.size(1)
        causal = torch.ones(n, n, dtype=torch.bool).triu(1)
        return self.head(self.body(self.tok(x) + self.pos.weight[:n], mask=causal))


model = LineLM()
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
feed = micro_batches()
for update in range(cfg.updates):
    parts = [next(feed) for _ in range(cfg.accum)]
    tokens = sum((p[:, 1:] != PAD).sum().item() for p in parts)
    total = 0.0
    opt.zero_grad()
    for p in parts:
        logits = model(p[:, :-1])
        part = F.cross_entropy(logits.flatten(0, 1), p[:, 1:].flatten(), ignore_index=PAD, reduction="sum") / tokens
        part.backward()
        total += part.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if update % 10 == 0 or update == cfg.updates - 1:
        print(f"update {update:3d} loss {total:.4f} tokens {tokens}")
