import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(27)
rng = np.random.default_rng(27)

HOURS, WIN, BS = 24 * 200, 36, 48


def load_curve(hours):
    t = np.arange(hours)
    temp = 12 + 8 * np.sin(2 * np.pi * t / (24 * 60)) + np.convolve(rng.standard_normal(hours), np.ones(12) / 4, "same")
    daily = np.sin(2 * np.pi * (t % 24) / 24 - 1.2) + 0.4 * np.sin(4 * np.pi * (t % 24) / 24)
    weekend = ((t // 24) % 7 >= 5).astype(float)
    load = 3 + daily * (1 - 0.5 * weekend) - 0.6 * weekend + 0.03 * np.abs(temp - 15) + 0.05 * rng.standard_normal(hours)
    feats = np.stack([load, temp / 10, weekend, np.sin(2 * np.pi * t / 24), np.cos(2 * np.pi * t / 24)], 1)
    feats = (feats - feats.mean(0)) / feats.std(0)
    return torch.tensor(feats, dtype=torch.float32)


class LoadNet(nn.Module):
    def __init__(self, n_in=5, hid=40):
        super().__init__()
        self.rnn = nn.GRU(n_in, hid, batch_first=True)
        self.reg = nn.Linear(hid, 1)

    def forward(self, x):
        return self.reg(self.rnn(x)[0][:, -1]).squeeze(-1)


series = load_curve(HOURS)
wins = series.unfold(0, WIN + 1, 1).transpose(1, 2)
X, Y = wins[:, :WIN], wins[:, WIN, 0]
n_train = int(0.8 * len(X))
Xtr, Ytr, Xva, Yva = X[:n_train], Y[:n_train], X[n_train:], Y[n_train:]

net = LoadNet()
weights = list(net.parameters())
velocity = [torch.zeros_like(w) for w in weights]
LR, MOM = 0.05, 0.9


def loss_and_grads(xb, yb, into):
    loss = (net(xb) - yb).pow(2).mean()
    for slot, g in zip(into, torch.autograd.grad(loss, weights)):
        slot += g
    return loss.item()


@torch.no_grad()
def update(grads):
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
    coef = min(1.0, 5.0 / (norm.item() + 1e-6))
    for w, v, g in zip(weights, velocity, grads):
        v.mul_(MOM).add_(g, alpha=coef)
        w.sub_(v, alpha=LR)


@torch.no_grad()
def evaluate():
    return (net(Xva) - Yva).pow(2).mean().item()


step = 0
for epoch in range(5):
    order = torch.randperm(n_train)[: 45 * BS]
    for idx in order.split(BS):
        grads = [torch.zeros_like(w) for w in weights]
        value = loss_and_grads(Xtr[idx], Ytr[idx], grads)
        update(grads)
        if step % 9 == 0:
            print(f"epoch {epoch} step {step} mse {value:.4f}", flush=True)
        step += 1
    print(f"epoch {epoch} held-out mse {evaluate():.4f}", flush=True)
