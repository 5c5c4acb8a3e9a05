import math
import random
import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
LETTERS = "abcdegiklnorstu"
PHON = "abksejilnorStuGk"
PAD, SOS, EOS = 0, 1, 2
src_vocab = {c: i + 3 for i, c in enumerate(LETTERS)}
tgt_vocab = {c: i + 3 for i, c in enumerate(sorted(set(PHON) | set("z")))}


def pronounce(w):
    out = []
    for i, c in enumerate(w):
        nxt = w[i + 1] if i + 1 < len(w) else ""
        prv = w[i - 1] if i else ""
        if c == "c":
            out.append("s" if nxt and nxt in "ei" else "k")
        elif c == "g":
            out.append("j" if nxt and nxt in "ei" else "G")
        elif c == "s":
            out.append("z" if prv and prv in "aeiou" and nxt and nxt in "aeiou" else "s")
        elif c == "d":
            out.append("t" if not nxt else "b")
        elif c == "e" and not nxt:
            continue
        else:
            out.append(c)
    return "".join(out)


def make_pair():
    w = "".join(random.choice(LETTERS) for _ in range(random.randint(4, 8)))
    return w, pronounce(w)


def collate(pairs):
    S = [[src_vocab[c] for c in w] for w, _ in pairs]
    T = [[SOS] + [tgt_vocab[c] for c in p] + [EOS] for _, p in pairs]
    pad = lambda rows: torch.tensor([r + [PAD] * (max(map(len, rows)) - len(r)) for r in rows])
    return pad(S), pad(T)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=512):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(100.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(pos * div)
        pe[:, 0, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:x.size(1)].transpose(0, 1)


class G2P(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.d = d
        self.src_emb = nn.Embedding(len(src_vocab) + 3, d, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(len(tgt_vocab) + 3, d, padding_idx=PAD)
        self.pos = PositionalEncoding(d)
        self.tf = nn.Transformer(d, 4, 2, 2, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, len(tgt_vocab) + 3)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1)).isinf()
        h = self.tf(self.pos(self.src_emb(src)), self.pos(self.tgt_emb(tgt)), tgt_mask=mask,
                    src_key_padding_mask=src == PAD, memory_key_padding_mask=src == PAD,
                    tgt_key_padding_mask=tgt == PAD)
        return self.out(h)


train = [make_pair() for _ in range(3000)]
test = [make_pair() for _ in range(200)]
net = G2P()
optimizer = torch.optim.Adam(net.parameters(), lr=1.5e-3, betas=(0.9, 0.98), eps=1e-9)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)

step, BS = 0, 48
for epoch in range(4):
    random.shuffle(train)
    running = 0.0
    nb = 0
    for i in range(0, len(train), BS):
        for gparam in optimizer.param_groups:
            gparam["lr"] = 1.5e-3 * min(1.0, (step + 1) / 60)
        src, tgt = collate(train[i:i + BS])
        logits = net(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, logits.size(-1)), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        running += loss.item()
        nb += 1
    print(f"epoch {epoch} step {step} loss {running / nb:.4f}")

net.eval()
with torch.no_grad():
    src, tgt = collate(test)
    ys = torch.full((len(test), 1), SOS)
    for _ in range(tgt.size(1) - 1):
        ys = torch.cat([ys, net(src, ys)[:, -1].argmax(-1, keepdim=True)], 1)
    ok = [(y[:t.index(EOS) + 1] == t[:t.index(EOS) + 1]) for y, t in zip(ys.tolist(), tgt.tolist())]
    print("word accuracy", sum(ok) / len(ok))
