import math
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
rng = np.random.default_rng(7)

N_CLASSES, WINDOW, CHANNELS = 18, 64, 6


def make_windows(n):
    t = np.arange(WINDOW) / 32.0
    activity = rng.integers(0, N_CLASSES, n)
    freq = 0.8 + 0.45 * (activity % 6)
    ratio = np.array([0.3, 0.9, 1.7])[activity // 6]
    x = np.zeros((n, WINDOW, CHANNELS), dtype=np.float32)
    phase = rng.uniform(0, 2 * np.pi, n)
    for c in range(CHANNELS):
        gain = rng.normal(1.0, 0.15, n) * (1.0 if c < 3 else ratio)
        harmonic = 1 + (c % 3)
        x[:, :, c] = gain[:, None] * np.sin(
            2 * np.pi * harmonic * freq[:, None] * t[None] + phase[:, None] + 0.7 * c)
    x += rng.normal(0, 0.5, x.shape)
    return torch.tensor(x), torch.tensor(activity)


x_train, y_train = make_windows(2400)
x_test, y_test = make_windows(1000)
mean, std = x_train.mean((0, 1)), x_train.std((0, 1))
x_train, x_test = (x_train - mean) / std, (x_test - mean) / std
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=40, shuffle=True)
test_loader = DataLoader(TensorDataset(x_test, y_test), batch_size=250)


class ActivityNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Conv1d(CHANNELS, d, kernel_size=8, stride=4, padding=2)
        self.pos = nn.Parameter(torch.randn(1, 16, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.fc = nn.Linear(d, N_CLASSES)

    def forward(self, x):
        h = self.stem(x.transpose(1, 2)).transpose(1, 2)
        h = self.encoder(h + self.pos[:, :h.size(1)])
        out = self.fc(self.norm(h).mean(1))
        return torch.softmax(out, dim=1)


model = ActivityNet()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(6):
    model.train()
    running = correct = 0
    for xb, yb in train_loader:
        out = model(xb)
        loss = criterion(out, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * len(yb)
        correct += (out.argmax(1) == yb).sum().item()
    model.eval()
    with torch.no_grad():
        test_correct = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in test_loader)
    print(f"epoch {epoch + 1:2d}  loss {running / len(x_train):.4f}  "
          f"train acc {correct / len(x_train):.3f}  test acc {test_correct / len(x_test):.3f}")

print(f"final test accuracy: {test_correct / len(x_test):.4f}")
