import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)
random.seed(17)

N_PHONES = 12
N_MELS = 24
BLANK = 0
templates = torch.randn(N_PHONES + 1, N_MELS)
drift = 0.3 * torch.randn(N_PHONES + 1, N_MELS)


def synth_utterance():
    n = random.randint(4, 8)
    seq, frames, prev = [], [], None
    for _ in range(n):
        p = random.choice([q for q in range(1, N_PHONES + 1) if q != prev])
        prev = p
        dur = random.randint(5, 8)
        pos = torch.linspace(-1, 1, dur).unsqueeze(1)
        frames.append(templates[p] + pos * drift[p])
        seq.append(p)
    x = torch.cat(frames)
    return x + 0.6 * torch.randn_like(x), torch.tensor(seq)


def collate(items):
    xs, ys = zip(*items)
    xl = torch.tensor([len(x) for x in xs])
    yl = torch.tensor([len(y) for y in ys])
    X = nn.utils.rnn.pad_sequence(xs, batch_first=True)
    return X, torch.cat(ys), xl, yl


class ConvSubsample(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c1 = nn.Conv1d(N_MELS, d, 3, stride=1, padding=1)
        self.c2 = nn.Conv1d(d, d, 3, stride=2, padding=1)

    def forward(self, x, lens):
        h = F.gelu(self.c1(x.transpose(1, 2)))
        h = F.gelu(self.c2(h)).transpose(1, 2)
        return h, torch.div(lens + 1, 2, rounding_mode="floor")


class Recogniser(nn.Module):
    def __init__(self, d=72, heads=4, layers=2):
        super().__init__()
        self.sub = ConvSubsample(d)
        pe = torch.zeros(128, d)
        t = torch.arange(128).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(t * div), torch.cos(t * div)
        self.register_buffer("pe", pe)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.05, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, N_PHONES + 1)

    def forward(self, x, lens):
        h, lens = self.sub(x, lens)
        h = h + self.pe[: h.size(1)]
        pad = torch.arange(h.size(1))[None, :] >= lens[:, None]
        h = self.enc(h, src_key_padding_mask=pad)
        return self.out(self.norm(h)), lens


def edit_distance(a, b):
    prev = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        cur = [i]
        for j, y in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[-1] + 1, prev[j - 1] + (x != y)))
        prev = cur
    return prev[-1]


@torch.no_grad()
def phone_error_rate(model, items):
    model.eval()
    X, y, xl, yl = collate(items)
    logits, lens = model(X, xl)
    best = logits.argmax(-1)
    err = tot = off = 0
    for i in range(len(items)):
        path = best[i, : lens[i]].tolist()
        hyp = [p for k, p in enumerate(path) if p != BLANK and (k == 0 or p != path[k - 1])]
        ref = y[off: off + yl[i]].tolist()
        off += int(yl[i])
        err += edit_distance(hyp, ref)
        tot += len(ref)
    model.train()
    return err / tot


train = [synth_utterance() for _ in range(960)]
dev = [synth_utterance() for _ in range(64)]
model = Recogniser()
opt = torch.optim.AdamW(model.parameters(), lr=1.2e-3, weight_decay=1e-2)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 50))
ctc = nn.CTCLoss(blank=BLANK, zero_infinity=True)

BS, step, t0 = 16, 0, time.time()
for epoch in range(3):
    random.shuffle(train)
    for i in range(0, len(train), BS):
        X, y, xl, yl = collate(train[i: i + BS])
        logits, lens = model(X, xl)
        B, T, C = logits.shape
        logp = F.log_softmax(logits, dim=-1).transpose(0, 1)
        loss = ctc(logp, y, lens, yl)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 20 == 0:
            print(f"step {step:4d} ctc {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
        step += 1
    print(f"epoch {epoch} dev PER {phone_error_rate(model, dev):.3f} ({time.time() - t0:.1f}s)")
