import random
import torch
from torch import nn


random.seed(14)
torch.manual_seed(14)
NS, F = 6, 12
BLANK = 0
bank = torch.randn(NS + 1, F)


def utterance():
    n = random.randint(3, 6)
    lab = [random.randint(1, NS) for _ in range(n)]
    frames = []
    for s in lab:
        for _ in range(random.randint(1, 3)):
            frames.append(torch.zeros(F))
        for _ in range(random.randint(2, 4)):
            frames.append(bank[s])
    x = torch.stack(frames)
    return x + 0.4 * torch.randn_like(x), lab


def collate(n):
    xs, ls = zip(*[utterance() for _ in range(n)])
    xl = torch.tensor([len(x) for x in xs])
    ll = torch.tensor([len(l) for l in ls])
    x = nn.utils.rnn.pad_sequence(xs, batch_first=True)
    return x, xl, torch.tensor(sum(ls, [])), ll, ls


class Reader(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.c1 = nn.Conv1d(F, h, 5, padding=2)
        self.c2 = nn.Conv1d(h, h, 5, padding=2)
        self.out = nn.Linear(h, NS + 1)

    def forward(self, x):
        z = torch.relu(self.c1(x.transpose(1, 2)))
        z = torch.relu(self.c2(z))
        return self.out(z.transpose(1, 2)).log_softmax(-1)


def decode(lp, length):
    best, out, prev = lp[:length].argmax(-1).tolist(), [], BLANK
    for s in best:
        if s != prev and s != BLANK:
            out.append(s)
        prev = s
    return out


def edit(a, b):
    d = list(range(len(b) + 1))
    for i, u in enumerate(a, 1):
        p, d[0] = d[0], i
        for j, v in enumerate(b, 1):
            p, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, p + (u != v))
    return d[-1]


net = Reader()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
vx, vxl, _, _, vls = collate(64)
for it in range(240):
    x, xl, tgt, ll, _ = collate(24)
    lp = net(x)
    loss = nn.functional.ctc_loss(lp.transpose(0, 1), tgt, xl, ll, blank=BLANK, zero_infinity=True)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    if it % 20 == 0 or it == 239:
        with torch.no_grad():
            lp = net(vx)
        err = sum(edit(decode(l, n), t) for l, n, t in zip(lp, vxl.tolist(), vls)) / sum(map(len, vls))
        print(f"it {it:3d} ctc loss {loss.item():.4f} symbol error rate {err:.3f}")
