import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(12)
random.seed(12)

N_PHON, N_MEL = 12, 20
BLANK = 0
STRIDE = 2
STEPS, BATCH = 280, 12
TEMPLATES = torch.rand(N_PHON + 1, 2, N_MEL).mul(2.5)
TEMPLATES[0] = 0.0


def utterance():
    labels = [random.randint(1, N_PHON) for _ in range(random.randint(3, 7))]
    frames = [torch.zeros(random.randint(1, 3), N_MEL)]
    prev = None
    for k in labels:
        if k == prev or random.random() < 0.2:
            frames.append(torch.zeros(random.randint(3, 4), N_MEL))
        n = random.randint(5, 9)
        mix = torch.linspace(0, 1, n)[:, None]
        frames.append((1 - mix) * TEMPLATES[k, 0] + mix * TEMPLATES[k, 1])
        prev = k
    frames.append(torch.zeros(random.randint(1, 3), N_MEL))
    x = torch.cat(frames) * random.uniform(0.8, 1.2)
    return x + 0.9 * torch.randn_like(x), torch.tensor(labels)


def collate(items):
    xs, ys = zip(*items)
    return (pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]),
            torch.cat(ys), torch.tensor([len(y) for y in ys]), ys)


class Recogniser(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(N_MEL, d, 5, padding=2), nn.GELU(),
            nn.Conv1d(d, d, 3, stride=STRIDE, padding=1), nn.GELU())
        self.att = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, N_PHON + 1)

    def forward(self, x, lengths):
        x = self.front(x.transpose(1, 2)).transpose(1, 2)
        out_len = (lengths - 1) // STRIDE + 1
        pad = torch.arange(x.size(1))[None] >= out_len[:, None]
        return self.out(self.norm(self.att(x, src_key_padding_mask=pad))).log_softmax(-1), out_len


def greedy(logp, lengths):
    result = []
    for row, n in zip(logp.argmax(-1), lengths.tolist()):
        row = torch.unique_consecutive(row[:n])
        result.append(row[row != BLANK].tolist())
    return result


def edit_distance(a, b):
    d = list(range(len(b) + 1))
    for i, p in enumerate(a, 1):
        diag, d[0] = d[0], i
        for j, q in enumerate(b, 1):
            diag, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, diag + (p != q))
    return d[-1]


model = Recogniser()
ctc = nn.CTCLoss(blank=BLANK)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS, pct_start=0.1)
train = [utterance() for _ in range(1500)]
val = collate([utterance() for _ in range(80)])


@torch.no_grad()
def error_rate():
    model.eval()
    logp, n = model(val[0], val[1])
    model.train()
    hyp = greedy(logp, n)
    errors = sum(edit_distance(h, y.tolist()) for h, y in zip(hyp, val[4]))
    loss = ctc(logp.transpose(0, 1), val[2], n, val[3]).item()
    return loss, errors / sum(len(y) for y in val[4])


step = 0
while step < STEPS:
    random.shuffle(train)
    for i in range(0, len(train) - BATCH + 1, BATCH):
        x, x_len, y, y_len, _ = collate(train[i: i + BATCH])
        logp, n = model(x, x_len)
        loss = ctc(logp.transpose(0, 1), y, n, y_len)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == STEPS - 1:
            vl, per = error_rate()
            print(f"step {step:3d} ctc {loss.item():.4f} | val ctc {vl:.4f} phoneme error rate {per:.3f}")
        step += 1
        if step == STEPS:
            break
