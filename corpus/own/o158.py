import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

ap = argparse.ArgumentParser()
ap.add_argument("--n", type=int, default=2400)
ap.add_argument("--bs", type=int, default=32)
ap.add_argument("--epochs", type=int, default=3)
ap.add_argument("--lr", type=float, default=1e-3)
ap.add_argument("--dim", type=int, default=64)
ap.add_argument("--seed", type=int, default=5)
args = ap.parse_args()
random.seed(args.seed)
torch.manual_seed(args.seed)

POS = ["good", "great", "lovely", "fine", "superb", "neat", "crisp", "warm"]
NEG = ["bad", "awful", "dull", "poor", "weak", "bland", "stale", "cold"]
NEU = [f"w{i}" for i in range(60)]
vocab = {w: i + 1 for i, w in enumerate(POS + NEG + NEU)}


class Reviews(Dataset):
    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            y = random.randint(0, 2)
            n_words = random.randint(6, 36)
            words = [random.choice(NEU) for _ in range(n_words)]
            slots = random.sample(range(n_words), 4)
            pools = {0: [NEG] * 4, 1: [POS, POS, NEG, NEG], 2: [POS] * 4}[y]
            for s, pool in zip(slots, pools):
                words[s] = random.choice(pool)
            self.rows.append((" ".join(words), y))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    seqs = [torch.tensor([vocab[w] for w in text.split()]) for text, _ in rows]
    labels = torch.tensor([y for _, y in rows])
    lengths = torch.tensor([len(s) for s in seqs])
    lengths, order = lengths.sort(descending=True)
    seqs = pad_sequence([seqs[i] for i in order], batch_first=True)
    return seqs, lengths, labels


class Classifier(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb = nn.Embedding(len(vocab) + 1, d, padding_idx=0)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3))

    def forward(self, x, lengths):
        keep = torch.arange(x.size(1))[None] < lengths[:, None]
        h = self.enc(self.emb(x), src_key_padding_mask=~keep)
        pooled = (h * keep[..., None]).sum(1) / lengths[:, None]
        return self.cls(pooled)


def main():
    train = DataLoader(Reviews(args.n), args.bs, shuffle=True, collate_fn=collate)
    test = DataLoader(Reviews(400), 100, collate_fn=collate)
    model = Classifier(args.dim)
    criterion = nn.CrossEntropyLoss()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        model.train()
        for x, lengths, y in train:
            loss = criterion(model(x, lengths), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 25 == 0:
                print(f"[{epoch}:{step}] loss={loss.item():.4f}")
            step += 1
        model.eval()
        with torch.no_grad():
            hit = sum((model(x, n).argmax(-1) == y).sum().item() for x, n, y in test)
        print(f"epoch {epoch} acc={hit / 400:.3f} last loss={loss.item():.4f}")


main()
