import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(13)
torch.manual_seed(13)
LANES, CHUNK, CHUNKS = 24, 16, 300


def stream(lanes, length):
    """2-d robot with velocity; we see noisy accelerations and rare position fixes"""
    acc = 0.3 * rng.standard_normal((lanes, length))
    vel, pos = np.zeros(lanes), np.zeros(lanes)
    fix = rng.random((lanes, length)) < 0.15
    track = np.zeros((lanes, length))
    for t in range(length):
        vel = 0.9 * vel + acc[:, t]
        pos = 0.95 * pos + 0.3 * vel
        track[:, t] = pos
    obs = np.stack([acc + 0.02 * rng.standard_normal(acc.shape), np.where(fix, track, 0), fix], -1)
    return torch.tensor(obs, dtype=torch.float32), torch.tensor(track, dtype=torch.float32)


class Tracker(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.rnn = nn.LSTM(3, h, batch_first=True)
        self.out = nn.Linear(h, 1)

    def forward(self, x, state=None):
        y, state = self.rnn(x, state)
        return self.out(y).squeeze(-1), state


obs, track = stream(LANES, CHUNK * CHUNKS)
vobs, vtrack = stream(LANES, 400)
net = Tracker()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
state = None
for k in range(CHUNKS):
    sl = slice(k * CHUNK, (k + 1) * CHUNK)
    pred, state = net(obs[:, sl], state)
    loss = (pred - track[:, sl]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    state = tuple(s.detach() for s in state)
    if k % 20 == 0 or k == CHUNKS - 1:
        print(f"chunk {k} mse {loss.item():.4f}", flush=True)


@torch.no_grad()
def validate():
    net.eval()
    pred, _ = net(vobs)
    net.train()
    return 1 - ((pred - vtrack).square().mean() / vtrack.var()).item()


print(f"validation R2 {validate():.4f}")
