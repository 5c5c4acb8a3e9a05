import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, TAGS, PAD_TAG = 80, 6, -1
rng = np.random.default_rng(4)
lexicon = rng.integers(0, TAGS, WORDS)


def sentence():
    n = int(rng.integers(4, 30))
    w = rng.integers(1, WORDS, n)
    prev = np.concatenate([[1], w[:-1]])
    return w, (lexicon[w] + (prev % 2)) % TAGS


def pad(batch):
    L = max(len(w) for w, _ in batch)
    x = torch.zeros(len(batch), L, dtype=torch.long)
    y = torch.full((len(batch), L), PAD_TAG)
    for i, (w, t) in enumerate(batch):
        x[i, :len(w)] = torch.from_numpy(w)
        y[i, :len(t)] = torch.from_numpy(t)
    return x, y


class Tagger(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.emb = nn.Embedding(WORDS, d, padding_idx=0)
        self.rnn = nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * d, TAGS)

    def forward(self, x):
        lengths = (x != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(x), lengths, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(h)


def main(updates=90, micro=4, size=8):
    torch.manual_seed(4)
    train, valid = [sentence() for _ in range(1500)], [sentence() for _ in range(150)]
    net = Tagger()
    opt = torch.optim.SGD(net.parameters(), lr=0.8, momentum=0.9, nesterov=True)
    for u in range(updates):
        groups = [pad([train[j] for j in rng.integers(0, len(train), size)]) for _ in range(micro)]
        tokens = sum(int((y != PAD_TAG).sum()) for _, y in groups)
        total = 0.0
        for x, y in groups:
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=PAD_TAG, reduction="sum")
            loss.backward()
            total += loss.item()
        for p in net.parameters():
            p.grad /= tokens
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if u % 6 == 0 or u == updates - 1:
            print(f"update {u} loss/token {total / tokens:.4f} grad {norm:.3f}", flush=True)
    with torch.no_grad():
        x, y = pad(valid)
        keep = y != PAD_TAG
        print(f"valid tag accuracy {(net(x).argmax(-1) == y)[keep].float().mean().item():.4f}")


main()
