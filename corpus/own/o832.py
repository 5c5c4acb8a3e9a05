import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(17)
torch.set_num_threads(1)
PHONES, FEAT, BLANK = 8, 12, 0
signatures = torch.randn(PHONES + 1, FEAT)
signatures[0] = 0


def utterance():
    n = int(torch.randint(3, 8, (1,)))
    ph = torch.randint(1, PHONES + 1, (n,))
    frames = [torch.zeros(int(torch.randint(1, 3, (1,))), FEAT)]
    for p in ph:
        frames.append(signatures[p].expand(int(torch.randint(3, 6, (1,))), FEAT))
        frames.append(torch.zeros(int(torch.randint(1, 3, (1,))), FEAT))
    x = torch.cat(frames)
    return x + 0.5 * torch.randn_like(x), ph


def collate(items):
    items = sorted(items, key=lambda i: -len(i[0]))
    xs, ys = zip(*items)
    xl = torch.tensor([len(x) for x in xs])
    yl = torch.tensor([len(y) for y in ys])
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), xl, torch.cat(ys), yl


class AM(nn.Module):
    def __init__(self, h=40):
        super().__init__()
        self.conv = nn.Conv1d(FEAT, h, 3, padding=1)
        self.rnn = nn.GRU(h, h, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * h, PHONES + 1)

    def forward(self, x, xl):
        h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h = nn.utils.rnn.pack_padded_sequence(h, xl, batch_first=True)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(h)[0], batch_first=True)
        return self.out(h).log_softmax(-1)


def greedy(lp, xl):
    out = []
    for row, n in zip(lp.argmax(-1).tolist(), xl.tolist()):
        prev, hyp = BLANK, []
        for s in row[:n]:
            if s != prev and s != BLANK:
                hyp.append(s)
            prev = s
        out.append(hyp)
    return out


def edit(a, b):
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        p, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            p, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, p + (x != y))
    return d[-1]


train = [utterance() for _ in range(800)]
dev = collate([utterance() for _ in range(120)])


@torch.no_grad()
def per(model):
    x, xl, y, yl = dev
    hyps = greedy(model(x, xl), xl)
    refs = [r.tolist() for r in y.split(yl.tolist())]
    return sum(edit(h, r) for h, r in zip(hyps, refs)) / len(y), sum(map(len, hyps))


model = AM()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
ctc = nn.CTCLoss(blank=BLANK, reduction="sum", zero_infinity=True)
step = 0
for epoch in range(5):
    order = torch.randperm(len(train)).tolist()
    for i in range(0, len(order), 25):
        x, xl, y, yl = collate([train[j] for j in order[i:i + 25]])
        lp = model(x, xl)
        loss = ctc(lp.transpose(0, 1), y, xl, yl) / len(xl)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if step % 20 == 0:
            e, n = per(model)
            print(f"step {step:3d} nll/utt {loss.item():7.3f} dev PER {e:.3f} emitted {n}")
        step += 1
print("final dev PER %.3f emitted %d of %d" % (*per(model), len(dev[2])))
