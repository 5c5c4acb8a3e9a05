import random
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

torch.set_num_threads(1)
random.seed(3)
torch.manual_seed(3)

BOS, EOS, PAD = 0, 1, 2

lines = []
for key in sorted(topics):
    for raw in topics[key].splitlines():
        raw = raw.strip()
        if 6 <= len(raw) <= 56 and raw.isascii():
            lines.append(raw.lower())
alphabet = sorted(set("".join(lines)))
code = {c: i + 3 for i, c in enumerate(alphabet)}
V = len(alphabet) + 3


def encode(s):
    return [BOS] + [code[c] for c in s] + [EOS]


class Collate:
    def __init__(self, limit=56):
        self.limit = limit

    def __call__(self, batch):
        seqs = [encode(s)[: self.limit + 1] for s in batch]
        width = max(len(s) for s in seqs) - 1
        inputs = torch.full((len(seqs), width), PAD)
        targets = torch.full((len(seqs), width), -100)
        for row, s in enumerate(seqs):
            n = len(s) - 1
            inputs[row, width - n:] = torch.tensor(s[:-1])
            targets[row, :n] = torch.tensor(s[1:])
        return {"input_ids": inputs, "labels": targets}


class LineModel(nn.Module):
    def __init__(self, d=64, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(V, d)
        self.pos = nn.Embedding(80, d)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.out = nn.Linear(d, V)

    def forward(self, ids):
        t = ids.shape[1]
        h = self.tok(ids) + self.pos(torch.arange(t))
        m = nn.Transformer.generate_square_subsequent_mask(t)
        return self.out(self.enc(h, mask=m, is_causal=True))


loader = DataLoader(lines, batch_size=20, shuffle=True, collate_fn=Collate(), drop_last=True)
net = LineModel()
optim = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)

step, total = 0, 170
while step < total:
    for batch in loader:
        logits = net(batch["input_ids"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optim.step()
        if step % 15 == 0 or step == total - 1:
            print("step %4d | loss %.4f" % (step, loss.item()))
        step += 1
        if step >= total:
            break
