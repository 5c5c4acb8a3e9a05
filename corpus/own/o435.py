import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(3)
np.random.seed(3)
torch.manual_seed(3)

N_PHONE, N_MEL, BLANK = 12, 24, 0
TEMPLATES = np.random.randn(N_PHONE + 1, N_MEL).astype(np.float32)


def utterance():
    n = random.randint(4, 8)
    phones = [random.randint(1, N_PHONE) for _ in range(n)]
    frames = []
    for p in phones:
        dur = random.randint(5, 9)
        env = np.hanning(dur + 2)[1:-1, None]
        frames.append(TEMPLATES[p] * env + 0.35 * np.random.randn(dur, N_MEL))
    return np.concatenate(frames).astype(np.float32), phones


def collate(items):
    T = max(len(f) for f, _ in items)
    feats = torch.zeros(len(items), T, N_MEL)
    for i, (f, _) in enumerate(items):
        feats[i, :len(f)] = torch.from_numpy(f)
    flen = torch.tensor([len(f) for f, _ in items])
    tlen = torch.tensor([len(p) for _, p in items])
    tgt = torch.tensor([x for _, p in items for x in p])
    return feats, flen, tgt, tlen


class ConvEncoder(nn.Module):
    def __init__(self, hid=96):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(N_MEL, hid, 5, stride=2, padding=2), nn.GELU(),
            nn.Conv1d(hid, hid, 3, padding=1), nn.GELU())
        self.rnn = nn.GRU(hid, hid // 2, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(hid, N_PHONE + 1)

    def forward(self, feats, flen):
        h = self.front(feats.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        emissions = self.proj(h).permute(1, 0, 2)
        return F.log_softmax(emissions, dim=1), (flen + 1) // 2


def collapse(path):
    out, prev = [], None
    for s in path:
        if s != prev and s != BLANK:
            out.append(s)
        prev = s
    return out


def edit(a, b):
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            prev, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, prev + (x != y))
    return d[-1]


def phone_error_rate(model, utts):
    model.eval()
    err = tot = 0
    with torch.no_grad():
        for i in range(0, len(utts), 32):
            chunk = utts[i:i + 32]
            feats, flen, _, _ = collate(chunk)
            logp, olen = model(feats, flen)
            best = logp.argmax(-1).t()
            for row, n, (_, ref) in zip(best, olen, chunk):
                err += edit(collapse(row[:n].tolist()), ref)
                tot += len(ref)
    model.train()
    return err / tot


train = [utterance() for _ in range(800)]
dev = [utterance() for _ in range(96)]
net = ConvEncoder()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
ctc = nn.CTCLoss(blank=BLANK, zero_infinity=True)

it = 0
for epoch in range(7):
    random.shuffle(train)
    for i in range(0, len(train), 32):
        feats, flen, tgt, tlen = collate(train[i:i + 32])
        logp, olen = net(feats, flen)
        loss = ctc(logp, tgt, olen, tlen)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if it % 10 == 0:
            print(f"it {it} loss {loss.item():.4f}", flush=True)
        it += 1
    print(f"epoch {epoch} dev PER {phone_error_rate(net, dev):.3f}", flush=True)
