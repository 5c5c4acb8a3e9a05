import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def beats(n, rng, length=96):
    t = np.linspace(0, 1, length)
    y = rng.integers(0, 5, n)
    x = np.zeros((n, 1, length), dtype=np.float32)
    for i, c in enumerate(y):
        c0 = 0.5 + rng.uniform(-0.08, 0.08)
        qrs = np.exp(-((t - c0) / (0.02 if c != 1 else 0.05)) ** 2)
        twave = 0.3 * np.exp(-((t - c0 - 0.2) / 0.05) ** 2) * (-1 if c == 2 else 1)
        pwave = 0.2 * np.exp(-((t - c0 + 0.18) / 0.03) ** 2) * (0 if c == 3 else 1)
        extra = 0.6 * np.exp(-((t - c0 - 0.07) / 0.02) ** 2) * (1 if c == 4 else 0)
        sig = qrs + twave + pwave + extra + 0.06 * rng.standard_normal(length)
        x[i, 0] = 1e-3 * sig * rng.uniform(0.8, 1.2)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def unit(cin, cout, stride):
    return nn.Sequential(nn.Conv1d(cin, cout, 5, stride=stride, padding=2, bias=False),
                         nn.BatchNorm1d(cout), nn.ReLU(inplace=True))


class BeatNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        widths = [(1, 16, 1), (16, 24, 2), (24, 32, 2), (32, 32, 1), (32, 48, 2), (48, 48, 1)]
        self.features = nn.Sequential(*[unit(*w) for w in widths])
        self.fc = nn.Linear(48 * 12, classes)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


class Runner:
    def __init__(self, net, train, val, lr=2e-3):
        self.net, self.train_dl, self.val_dl = net, train, val
        self.opt = torch.optim.AdamW(net.parameters(), lr)
        self.criterion = nn.CrossEntropyLoss()

    @torch.inference_mode()
    def evaluate(self, limit=None):
        self.net.eval()
        hit = seen = 0
        for k, (x, y) in enumerate(self.val_dl):
            if limit is not None and k >= limit:
                break
            hit += (self.net(x).argmax(1) == y).sum().item()
            seen += len(y)
        return hit / seen

    def fit(self, epochs):
        print(f"sanity check acc {self.evaluate(limit=2):.3f}")
        n = 0
        for epoch in range(epochs):
            self.net.train()
            for x, y in self.train_dl:
                loss = self.criterion(self.net(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if n % 10 == 0:
                    print(f"epoch {epoch} iter {n} loss {loss.item():.4f}", flush=True)
                n += 1
            print(f"epoch {epoch} val acc {self.evaluate():.4f}", flush=True)


def main(seed=8):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    train = DataLoader(beats(1600, rng), 64, shuffle=True)
    val = DataLoader(beats(400, rng), 100)
    Runner(BeatNet(), train, val).fit(epochs=6)


main()
