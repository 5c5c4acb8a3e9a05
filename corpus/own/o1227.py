import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

SEED = 77
SYMBOLS, WORDS, BOOKS = (16, 16, 3)
PAD, GO = (0, 1)
B0, S0, W0 = (2, 2 + BOOKS, 2 + BOOKS + SYMBOLS)
VOCAB = W0 + WORDS
MAX_SYMBOLS, ANSWER = (9, 4)
NOISE = 0.25
LENGTH = 1 + MAX_SYMBOLS + 1 + ANSWER


class CodeBooks(Dataset):
    def __init__(self, n, seed):
        books = torch.stack(
            [
                torch.randperm(WORDS, generator=torch.Generator().manual_seed(b))
                for b in range(BOOKS)
            ]
        )
        g = torch.Generator().manual_seed(seed)
        self.rows, self.clean = ([], [])
        for _ in range(n):
            m = int(torch.randint(ANSWER, MAX_SYMBOLS + 1, (1,), generator=g))
            book = torch.randint(0, BOOKS, (1,), generator=g)
            symbols = torch.randint(0, SYMBOLS, (m,), generator=g)
            right = books[book, symbols.flip(0)[:ANSWER]]
            wrong = torch.randint(0, WORDS, (ANSWER,), generator=g)
            given = torch.where(torch.rand(ANSWER, generator=g) < NOISE, wrong, right)
            row = torch.cat([book + B0, symbols + S0, torch.tensor([GO]), given + W0])
            self.rows.append(F.pad(row, (LENGTH - len(row), 0), value=PAD))
            self.clean.append(right + W0)
        self.rows, self.clean = (torch.stack(self.rows), torch.stack(self.clean))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        labels = torch.full((LENGTH - 1,), -100)
        labels[-ANSWER:] = row[-ANSWER:]
        return (row[:-1], labels, self.clean[i])


def floor():
    hit = 1 - NOISE + NOISE / WORDS
    miss = NOISE / WORDS
    return -hit * math.log(hit) - (WORDS - 1) * miss * math.log(miss)


class Sandwich(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.a_in, self.a_out = (nn.RMSNorm(d), nn.RMSNorm(d))
        self.f_in, self.f_out = (nn.RMSNorm(d), nn.RMSNorm(d))
        nn.init.constant_(self.a_out.weight, 0.5)
        nn.init.constant_(self.f_out.weight, 0.5)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.f1, self.f2 = (nn.Linear(d, 2 * d), nn.Linear(2 * d, d))

    def forward(self, x, bias):
        b, t, d = x.shape
        y = self.a_in(x)
        q, k, v = (w(y).view(b, t, self.h, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        s = q @ k.transpose(-1, -2) / math.sqrt(d // self.h) + bias
        s = s - s.amax(-1, keepdim=True).detach()
        e = s.exp()
        y = e / e.sum(-1, keepdim=True) @ v
        x = x + self.a_out(self.o(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.f_out(self.f2(F.gelu(self.f1(self.f_in(x)))))


class PrefixLM(nn.Module):
    def __init__(self, d=64, h=4, depth=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Embedding(LENGTH, d)
        self.blocks = nn.ModuleList([Sandwich(d, h) for _ in range(depth)])
        self.norm = nn.RMSNorm(d)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, ids):
        b, t = ids.shape
        i = torch.arange(t)
        prefix = i < t - (ANSWER - 1)
        allowed = (i[None, :] <= i[:, None]) | prefix[None, :]
        allowed = allowed[None] & (ids != PAD)[:, None, :]
        allowed = allowed | torch.eye(t, dtype=torch.bool)
        bias = torch.zeros(b, 1, t, t).masked_fill(~allowed[:, None], -1000000000.0)
        x = self.emb(ids) + self.pos(i)
        for blk in self.blocks:
            x = blk(x, bias)
        return self.norm(x) @ self.emb.weight.t() / 4 + self.bias


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    train, test = (CodeBooks(7000, 1), CodeBooks(500, 2))
    micro, accumulate, epochs = (16, 2, 2)
    loader = DataLoader(train, batch_size=micro, shuffle=True, drop_last=True)
    model = PrefixLM()
    opt = torch.optim.AdamW(model.parameters(), lr=0.003, betas=(0.9, 0.95), weight_decay=0.02)
    updates = epochs * len(loader) // accumulate
    print(f"{updates} updates, floor of the loss {floor():.4f}, guessing {math.log(WORDS):.4f}")
    done, total, tokens = (0, 0.0, 0)
    for epoch in range(epochs):
        for n, (ids, labels, _) in enumerate(loader):
            loss = F.cross_entropy(
                model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
            )
            loss.backward()
            total += loss.item()
            tokens += int((labels != -100).sum())
            if (n + 1) % accumulate:
                continue
            for p in model.parameters():
                p.grad /= tokens
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            f = done / updates
            lr = 0.003 * min(1.0, done / 30 + 0.03, max(0.0, (1 - f) / 0.3))
            for g in opt.param_groups:
                g["lr"] = lr
            opt.step()
            opt.zero_grad()
            if done % 50 == 0:
                print(
                    f"update {done} summed loss {total:.1f} per token {total / tokens:.4f} lr {lr:.1e}"
                )
            done, total, tokens = (done + 1, 0.0, 0)
    model.eval()
    with torch.no_grad():
        ids, labels, clean = (torch.stack(z) for z in zip(*(test[i] for i in range(len(test)))))
        logits = model(ids)[:, -ANSWER:]
        print(
            f"test loss per token {F.cross_entropy(logits.flatten(0, 1), labels[:, -ANSWER:].flatten()).item():.4f}"
        )
        print(
            f"right word named {(logits.argmax(-1) == clean).float().mean().item():.3f}, agrees with the clerk {(logits.argmax(-1) == labels[:, -ANSWER:]).float().mean().item():.3f}"
        )


if __name__ == "__main__":
    main()
