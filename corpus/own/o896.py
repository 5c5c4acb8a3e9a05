import copy
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

rs = np.random.RandomState(3)
torch.manual_seed(3)
CLASSES, CLIENTS = 6, 8
motifs = rs.randn(CLASSES, 3, 8)


def windows(labels):
    x = 0.7 * rs.randn(len(labels), 3, 96)
    at = rs.randint(0, 88, len(labels))
    for i, (c, a) in enumerate(zip(labels, at)):
        x[i, :, a:a + 8] += 1.2 * motifs[c]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(labels)


def client_data(i):
    mix = np.full(CLASSES, 0.05)
    mix[[i % CLASSES, (i + 2) % CLASSES]] = 0.4
    labels = np.sort(rs.choice(CLASSES, 160, p=mix / mix.sum()))
    return windows(labels)


class SensorNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Conv1d(3, d, 8)
        self.norm = nn.GroupNorm(4, d)
        self.pool = nn.Parameter(torch.randn(d) * 0.2)
        self.out = nn.Linear(2 * d, CLASSES)

    def forward(self, x):
        h = F.gelu(self.norm(self.tok(x))).transpose(1, 2)
        a = torch.softmax(h @ self.pool, 1)
        return self.out(torch.cat([torch.einsum("bt,btd->bd", a, h), h.amax(1)], -1))


clients = [client_data(i) for i in range(CLIENTS)]
xt, yt = windows(rs.randint(0, CLASSES, 600))
server = SensorNet()
for rnd in range(13):
    chosen = rs.choice(CLIENTS, 6, replace=False)
    states, reported = [], []
    for c in chosen:
        x, y = clients[c]
        local = copy.deepcopy(server)
        opt = torch.optim.SGD(local.parameters(), lr=0.1)
        for ix in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(local(x[ix]), y[ix])
            opt.zero_grad()
            loss.backward()
            opt.step()
            reported.append(loss.item())
        states.append(local.state_dict())
    merged = {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}
    server.load_state_dict(merged)
    print("round %02d client loss %.4f" % (rnd, np.mean(reported)))
with torch.no_grad():
    print("server test accuracy %.3f" % (server(xt).argmax(-1) == yt).float().mean().item())
