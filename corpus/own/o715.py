import logging
import sys
import numpy as np
import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("claims")
SEED, WINDOW, N_SERIES, MONTHS = 5, 24, 60, 120
torch.manual_seed(SEED)
rs = np.random.RandomState(SEED)


def simulate():
    t = np.arange(MONTHS)
    rows = []
    for _ in range(N_SERIES):
        phase, amp = rs.uniform(0, 12), rs.uniform(0.6, 1.4)
        base = amp * np.sin(2 * np.pi * (t + phase) / 12) + 0.5 * np.sin(2 * np.pi * (t + phase) / 6)
        x = base + 0.15 * rs.randn(MONTHS)
        shock = rs.rand(MONTHS) < 0.006
        x = x + shock * rs.pareto(1.1, MONTHS) * 40
        rows.append(x)
    return np.array(rows, dtype=np.float32)


series = simulate()
med = np.median(series)
iqr = np.subtract(*np.percentile(series, [75, 25]))
series = ((series - med) / iqr).astype(np.float32)


def windows(lo, hi):
    X, Y = [], []
    for s in series:
        for i in range(lo, hi - WINDOW):
            X.append(np.clip(s[i:i + WINDOW], -4, 4))
            Y.append(s[i + WINDOW])
    return torch.from_numpy(np.array(X))[..., None], torch.from_numpy(np.array(Y))


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.inp = nn.Linear(1, 16)
        self.gru = nn.GRU(16, hidden, batch_first=True)
        self.score = nn.Linear(hidden, 1)
        self.head = nn.Sequential(nn.Linear(2 * hidden, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        h, last = self.gru(self.inp(x))
        a = self.score(torch.tanh(h)).softmax(dim=1)
        return self.head(torch.cat([(a * h).sum(1), last[0]], -1)).squeeze(-1)


class Engine:
    def __init__(self, model, lr, max_norm):
        self.model = model
        self.params = model.parameters()
        self.opt = torch.optim.SGD(self.params, lr=lr, momentum=0.9)
        self.max_norm = max_norm

    def update(self, x, y):
        self.opt.zero_grad()
        loss = 0.5 * (self.model(x) - y).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, self.max_norm)
        self.opt.step()
        return loss.item()


xtr, ytr = windows(0, 96)
xva, yva = windows(96 - WINDOW, MONTHS)
model = Forecaster()
eng = Engine(model, lr=0.05, max_norm=0.5)
hist = []
for step in range(700):
    idx = torch.randint(0, len(xtr), (64,))
    hist.append(eng.update(xtr[idx], ytr[idx]))
    if (step + 1) % 100 == 0:
        with torch.no_grad():
            mae = (model(xva) - yva).abs().median()
        log.info("step %d  train loss (median of last 100) %.4f  val median abs err %.4f",
                 step + 1, float(np.median(hist[-100:])), mae)
