import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = "_abcdefgh"
V = len(ALPHABET)


class SynthLines:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.glyphs = torch.randn(V, 3, 10, generator=torch.Generator().manual_seed(99))

    def batch(self, n):
        xs, ys = torch.zeros(n, 48, 10), []
        for i in range(n):
            k = int(torch.randint(3, 7, (1,), generator=self.g))
            y = torch.randint(1, V, (k,), generator=self.g)
            pos = int(torch.randint(0, 4, (1,), generator=self.g))
            for c in y.tolist():
                xs[i, pos:pos + 3] = self.glyphs[c]
                pos += 4 + int(torch.randint(0, 3, (1,), generator=self.g))
            ys.append(y)
        xs += 0.3 * torch.randn(xs.shape, generator=self.g)
        return xs, torch.cat(ys), torch.tensor([len(y) for y in ys]), ys


class CRNN(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(10, d, 3, 1, 1), nn.BatchNorm1d(d), nn.ReLU(), nn.Conv1d(d, d, 3, 2, 1), nn.BatchNorm1d(d), nn.ReLU())
        self.rnn = nn.LSTM(d, d // 2, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(d, V)

    def forward(self, x):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.linear(h)


def compute_loss(out, flat, tl):
    il = torch.full((out.shape[0],), out.shape[1])
    return F.ctc_loss(F.log_softmax(out, -1).transpose(0, 1), flat, il, tl, zero_infinity=True)


def decode(out):
    best = out.argmax(-1)
    res = []
    for row in best.tolist():
        prev, s = 0, []
        for c in row:
            if c != prev and c != 0:
                s.append(c)
            prev = c
        res.append(s)
    return res


def evaluate(model, ds):
    model.eval()
    with torch.no_grad():
        x, flat, tl, ys = ds.batch(200)
        out = model(x)
        pred = decode(out)
    model.train()
    exact = sum(p == y.tolist() for p, y in zip(pred, ys)) / len(ys)
    return compute_loss(out, flat, tl).item(), exact


torch.manual_seed(1)
train_ds, val_ds = SynthLines(1), SynthLines(2)
model = CRNN()
opt = torch.optim.Adam(model.parameters(), 3e-3)
sch = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=300)
for i in range(300):
    x, flat, tl, _ = train_ds.batch(32)
    loss = compute_loss(model(x), flat, tl)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
    opt.step()
    sch.step()
    if i % 30 == 0:
        print(i, "ctc", round(loss.item(), 3))
vl, ex = evaluate(model, val_ds)
print("val loss %.3f exact match %.3f" % (vl, ex))
