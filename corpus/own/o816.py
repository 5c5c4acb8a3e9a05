import copy
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
np.random.seed(0)
torch.set_num_threads(1)
CLIENTS, CLASSES, DIM = 10, 10, 24

centers = np.random.randn(CLASSES, 3, DIM) * 1.0


def draw(n, labels):
    y = np.random.choice(labels, n)
    c = np.random.randint(0, 3, n)
    x = centers[y, c] + 0.8 * np.random.randn(n, DIM)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


shards = []
for k in range(CLIENTS):
    labels = [k, (k + 1) % CLASSES, (k + 3) % CLASSES]
    shards.append(draw(int(np.random.randint(120, 360)), labels))
xte, yte = draw(2000, np.arange(CLASSES))


def build():
    return nn.Sequential(nn.Linear(DIM, 96), nn.GroupNorm(4, 96), nn.ReLU(), nn.Linear(96, CLASSES))


def local_update(worker, state, shard, lr, epochs=3, bs=24):
    worker.load_state_dict(state)
    worker.train()
    opt = torch.optim.SGD(worker.parameters(), lr=lr)
    x, y = shard
    losses = []
    for _ in range(epochs):
        for idx in torch.randperm(len(x)).split(bs):
            loss = F.cross_entropy(worker(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return {n: v.clone() for n, v in worker.state_dict().items()}, losses


server, worker = build(), build()
velocity = {n: torch.zeros_like(v) for n, v in server.state_dict().items()}


@torch.no_grad()
def score(m):
    m.eval()
    out = m(xte)
    return F.cross_entropy(out, yte).item(), (out.argmax(1) == yte).float().mean().item()


print("init: test loss %.3f acc %.3f" % score(server))
for rnd in range(25):
    picked = np.random.choice(CLIENTS, 4, replace=False)
    base = copy.deepcopy(server.state_dict())
    total = sum(len(shards[k][0]) for k in picked)
    delta = {n: torch.zeros_like(v) for n, v in base.items()}
    first, last = [], []
    for k in picked:
        new, ls = local_update(worker, base, shards[k], lr=0.05 * 0.98 ** rnd)
        first.append(ls[0])
        last.append(np.mean(ls[-5:]))
        for n in delta:
            delta[n] += (new[n] - base[n]) * (len(shards[k][0]) / total)
    for n in delta:
        velocity[n] = 0.6 * velocity[n] + delta[n]
        base[n] += velocity[n]
    server.load_state_dict(base)
    print("round %2d clients %s local loss %.3f -> %.3f | server test loss %.3f acc %.3f"
          % (rnd, picked.tolist(), np.mean(first), np.mean(last), *score(server)))
