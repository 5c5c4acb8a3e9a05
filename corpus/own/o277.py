import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler

VOCAB, PAD, GO, STOP = 29, 0, 1, 2
MICRO = 4


class ByLength(Sampler):
    def __init__(self, lengths, size, seed):
        self.lengths, self.size, self.rng = lengths, size, random.Random(seed)

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], self.rng.random()))
        groups = [order[i:i + self.size] for i in range(0, len(order) - self.size + 1, self.size)]
        self.rng.shuffle(groups)
        yield from groups

    def __len__(self):
        return len(self.lengths) // self.size


def words(n, seed):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        w = [rng.randrange(3, VOCAB) for _ in range(rng.randint(3, 12))]
        out.append((torch.tensor(w), torch.tensor([GO] + [c for c in w if c % 2] + [c for c in w if c % 2 == 0] + [STOP])))
    return sorted(out, key=lambda p: len(p[0]))


def collate(items):
    return (pad_sequence([a for a, _ in items], batch_first=True, padding_value=PAD),
            pad_sequence([b for _, b in items], batch_first=True, padding_value=PAD))


class Rewriter(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Embedding(16, d)
        enc = nn.TransformerEncoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        dec = nn.TransformerDecoderLayer(d, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(enc, 1, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.dec = nn.TransformerDecoder(dec, 2, norm=nn.LayerNorm(d))
        self.scale = d ** -0.5

    def forward(self, src, tgt):
        pad = src == PAD
        memory = self.enc(self.tok(src) + self.pos.weight[:src.size(1)], src_key_padding_mask=pad)
        t = tgt.size(1)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        h = self.dec(self.tok(tgt) + self.pos.weight[:t], memory, tgt_mask=mask, memory_key_padding_mask=pad)
        return h @ self.tok.weight.T * self.scale


torch.manual_seed(130)
data = words(4096, 1300)
loader = DataLoader(data, batch_sampler=ByLength([len(a) for a, _ in data], 10, 13), collate_fn=collate, shuffle=False)
net = Rewriter()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
update, micro = 0, []
while update < 100:
    for src, tgt in loader:
        micro.append((src, tgt))
        if len(micro) < MICRO:
            continue
        tokens = sum(int((t[:, 1:] != PAD).sum()) for _, t in micro)
        shown = 0.0
        for s, t in micro:
            out = net(s, t[:, :-1])
            part = F.cross_entropy(out.flatten(0, 1), t[:, 1:].flatten(), ignore_index=PAD, reduction="sum") / tokens
            part.backward()
            shown += part.item()
        opt.step()
        opt.zero_grad()
        micro.clear()
        if update % 10 == 0 or update == 99:
            print(f"update {update} tokens {tokens} loss {shown:.4f}")
        update += 1
        if update == 100:
            break
