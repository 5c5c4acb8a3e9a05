import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

DIGITS = 10
BLANK = 0
N_MELS = 20


class SpokenDigits:
    def __init__(self, seed, templates):
        self.g = torch.Generator().manual_seed(seed)
        self.templates = templates

    def utterance(self):
        n = int(torch.randint(2, 6, (1,), generator=self.g))
        digits = torch.randint(0, DIGITS, (n,), generator=self.g)
        frames = [0.1 * torch.randn(int(torch.randint(1, 4, (1,), generator=self.g)), N_MELS, generator=self.g)]
        for d in digits.tolist():
            dur = int(torch.randint(4, 8, (1,), generator=self.g))
            ramp = torch.linspace(0, 1, dur).unsqueeze(1)
            start, end = self.templates[d]
            frames.append((1 - ramp) * start + ramp * end)
            gap = int(torch.randint(1, 3, (1,), generator=self.g))
            frames.append(torch.zeros(gap, N_MELS))
        x = torch.cat(frames)
        gain = 0.8 + 0.4 * torch.rand(1, generator=self.g)
        return gain * x + 0.25 * torch.randn(x.shape, generator=self.g), digits + 1

    def batch(self, size):
        items = [self.utterance() for _ in range(size)]
        xs, ys = zip(*items)
        return (pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]),
                torch.cat(ys), torch.tensor([len(y) for y in ys]))


class AcousticModel(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(N_MELS, hidden, 3, padding=1), nn.ReLU(),
                                   nn.Conv1d(hidden, hidden, 3, padding=1), nn.ReLU())
        self.rnn = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(2 * hidden, DIGITS + 1)

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).transpose(1, 2)
        h, _ = self.rnn(h)
        return F.softmax(self.proj(h), dim=-1)


def decode(out, lengths):
    best = out.argmax(-1)
    hyps = []
    for row, n in zip(best, lengths.tolist()):
        seq = torch.unique_consecutive(row[:n])
        hyps.append([int(s) for s in seq if s != BLANK])
    return hyps


def edit_distance(a, b):
    prev = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        cur = [i]
        for j, y in enumerate(b, 1):
            cur.append(min(prev[j] + 1, cur[-1] + 1, prev[j - 1] + (x != y)))
        prev = cur
    return prev[-1]


class Recognizer:
    def __init__(self, steps=340, batch_size=16, lr=3e-3):
        torch.manual_seed(21)
        templates = torch.rand(DIGITS, 2, N_MELS) * 1.5
        self.train_data = SpokenDigits(1, templates)
        self.dev = SpokenDigits(2, templates).batch(100)
        self.model = AcousticModel()
        self.criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.steps, self.batch_size = steps, batch_size

    def loss(self, batch):
        x, x_len, y, y_len = batch
        out = self.model(x)
        return self.criterion(out.transpose(0, 1), y, x_len, y_len), out

    def error_rate(self):
        self.model.eval()
        with torch.no_grad():
            loss, out = self.loss(self.dev)
        _, x_len, y, y_len = self.dev
        refs = [r.tolist() for r in y.split(y_len.tolist())]
        errors = sum(edit_distance(h, r) for h, r in zip(decode(out, x_len), refs))
        self.model.train()
        return loss.item(), errors / len(y)

    def fit(self):
        for step in range(self.steps):
            loss, _ = self.loss(self.train_data.batch(self.batch_size))
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            if step % 30 == 0 or step == self.steps - 1:
                dev, err = self.error_rate()
                print(f"step {step:3d} | ctc {loss.item():8.4f} | dev {dev:8.4f} | digit error rate {err:.3f}", flush=True)


if __name__ == "__main__":
    Recognizer().fit()
