import math
import random
import torch
import torch.nn as nn

random.seed(21)
torch.manual_seed(21)
PAD, BOS, EOS = 0, 1, 2
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
CH = "0123456789abcdefghijklmnopqrstuvwxyz -/"
IDX = {c: i + 3 for i, c in enumerate(CH)}


def pair():
    y, m, d = random.randint(1950, 2049), random.randint(1, 12), random.randint(1, 28)
    form = random.choice(["{d} {m} {y}", "{m} {d} {y}", "{d}/{n}/{y}"])
    return form.format(d=d, m=MONTHS[m - 1], n=m, y=y), f"{y}-{m:02d}-{d:02d}"


def rows(strings):
    enc = [[BOS] + [IDX[c] for c in s] + [EOS] for s in strings]
    w = max(map(len, enc))
    return torch.tensor([e + [PAD] * (w - len(e)) for e in enc])


class DateNet(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d, padding_idx=PAD)
        self.pos = nn.Embedding(24, d)
        self.core = nn.Transformer(d, 4, 1, 1, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, vocab)

    def embed(self, t):
        return self.emb(t) + self.pos.weight[: t.shape[1]]

    def forward(self, src, tgt):
        m = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        gap = src == PAD
        h = self.core(self.embed(src), self.embed(tgt), tgt_mask=m,
                      src_key_padding_mask=gap, memory_key_padding_mask=gap)
        return self.out(h)


class AdaBelief:
    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8):
        self.params = params
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        self.slots = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, m, s in self.slots:
            if p.grad is None:
                continue
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            diff = p.grad - m
            s.mul_(b2).addcmul_(diff, diff, value=1 - b2).add_(self.eps)
            denom = (s / (1 - b2 ** self.t)).sqrt_().add_(self.eps)
            p.addcdiv_(m, denom, value=-self.lr / (1 - b1 ** self.t))


net = DateNet(len(CH) + 3)
optimizer = AdaBelief(net.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
for it in range(1, 251):
    a, b = zip(*(pair() for _ in range(32)))
    src, tgt = rows(a), rows(b)
    optimizer.zero_grad()
    logits = net(src, tgt[:, :-1])
    loss = criterion(logits.transpose(1, 2), tgt[:, 1:])
    loss.backward()
    optimizer.step()
    if it == 1 or it % 25 == 0:
        print(f"iter {it} loss {loss.item():.4f}")
