import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1111)
NOTES, BPTT, ROWS, HID = 30, 24, 24, 96
g = torch.Generator().manual_seed(2)
phrases = [torch.randint(NOTES, (int(torch.randint(4, 9, (1,), generator=g)),), generator=g) for _ in range(10)]
follow = torch.rand(10, 10, generator=g).pow(4)


def compose(n):
    out, cur, total = [], 0, 0
    while total < n:
        cur = int(torch.multinomial(follow[cur], 1, generator=g))
        out.append(phrases[cur])
        total += len(phrases[cur])
    return torch.cat(out)[:n]


def batchify(x, rows):
    n = len(x) // rows
    return x[: n * rows].view(rows, n)


class WordLSTM(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.enc = nn.Embedding(NOTES, HID)
        self.drop = nn.Dropout(p)
        self.rnn = nn.LSTM(HID, HID, 2, batch_first=True, dropout=p)
        self.dec = nn.Linear(HID, NOTES)
        self.dec.weight = self.enc.weight
        nn.init.uniform_(self.enc.weight, -0.1, 0.1)
        nn.init.zeros_(self.dec.bias)

    def forward(self, x, state):
        h, state = self.rnn(self.drop(self.enc(x)), state)
        return self.dec(self.drop(h)), state


def detach(state):
    return tuple(s.detach() for s in state) if state is not None else None


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    state, total, count = None, 0.0, 0
    for i in range(0, data.size(1) - 1, BPTT):
        x = data[:, i:i + BPTT][:, : data.size(1) - 1 - i]
        y = data[:, i + 1:i + 1 + x.size(1)]
        out, state = model(x, state)
        total += F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum").item()
        count += y.numel()
    model.train()
    return total / count


train, valid = batchify(compose(ROWS * BPTT * 75), ROWS), batchify(compose(6000), 20)
model = WordLSTM()
lr, clip, best = 30.0, 0.1, None
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(1, 5):
    state, total, n = None, 0.0, 0
    for b, i in enumerate(range(0, train.size(1) - BPTT - 1, BPTT), 1):
        state = detach(state)
        out, state = model(train[:, i:i + BPTT], state)
        loss = F.cross_entropy(out.flatten(0, 1), train[:, i + 1:i + 1 + BPTT].flatten())
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        total, n = total + loss.item(), n + 1
        if b % 15 == 0:
            print(f"| epoch {epoch} | {b:3d} batches | lr {lr:5.2f} | loss {total / n:.3f} | ppl {math.exp(total / n):.2f}")
            total, n = 0.0, 0
    val = evaluate(model, valid)
    print(f"| end of epoch {epoch} | valid loss {val:.3f} | valid ppl {math.exp(val):.2f}")
    if best is not None and val > best - 0.02:
        lr /= 4
        for group in optimizer.param_groups:
            group["lr"] = lr
    best = val if best is None else min(best, val)
