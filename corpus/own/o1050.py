import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

torch.manual_seed(9)
PHONES, MELS, BLANK = 14, 20, 0
gen = torch.Generator().manual_seed(1)
timbre = torch.randn(PHONES + 1, MELS, generator=gen)


def utterance():
    n = int(torch.randint(4, 8, (1,), generator=gen))
    phones = torch.randint(1, PHONES + 1, (n,), generator=gen)
    frames = []
    for p in phones.tolist():
        dur = int(torch.randint(3, 7, (1,), generator=gen))
        frames.append(timbre[p] + 0.7 * torch.randn(dur, MELS, generator=gen))
        frames.append(0.7 * torch.randn(1, MELS, generator=gen))
    return torch.cat(frames), phones


def pad(batch):
    xs, ys = zip(*batch)
    xl = torch.tensor([len(x) for x in xs])
    yl = torch.tensor([len(y) for y in ys])
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), xl, torch.cat(ys), yl


class Recognizer(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.front = nn.Conv1d(MELS, dim, 3, padding=1)
        self.norm = nn.LayerNorm(dim)
        self.rnn = nn.GRU(dim, dim // 2, batch_first=True, bidirectional=True)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, PHONES + 1)

    def forward(self, x, lengths):
        h = self.norm(F.gelu(self.front(x.transpose(1, 2))).transpose(1, 2))
        h = h + self.rnn(h)[0]
        hidden = torch.arange(x.size(1)) >= lengths[:, None]
        q = self.norm2(h)
        h = h + self.attn(q, q, q, key_padding_mask=hidden, need_weights=False)[0]
        return self.fc(h).log_softmax(-1)


def collapse(path):
    out, last = [], BLANK
    for p in path:
        if p != last and p != BLANK:
            out.append(p)
        last = p
    return out


def edits(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


train = [utterance() for _ in range(640)]
test = [utterance() for _ in range(60)]
loader = DataLoader(train, batch_size=16, shuffle=True, collate_fn=pad)
model = Recognizer()
epochs, peak = 6, 4e-3
optimizer = torch.optim.Adam(model.parameters(), lr=peak)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=epochs * len(loader), pct_start=0.2)
ctc = nn.CTCLoss(blank=BLANK, zero_infinity=True)

for epoch in range(1, epochs + 1):
    model.train()
    for i, (x, xl, y, yl) in enumerate(loader):
        logp = model(x, xl)
        loss = ctc(logp.transpose(0, 1), y, xl, yl)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        if i % 20 == 0:
            print(f"epoch {epoch} batch {i:3d} ctc {loss.item():.4f}")
    model.eval()
    wrong = total = 0
    with torch.no_grad():
        x, xl, y, yl = pad(test)
        best = model(x, xl).argmax(-1)
        for row, n, (_, ref) in zip(best.tolist(), xl.tolist(), test):
            wrong += edits(collapse(row[:n]), ref.tolist())
            total += len(ref)
    print(f"epoch {epoch} phone error rate {wrong / total:.3f}")
