import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset


class Sensors(Dataset):
    def __init__(self, n=1536, length=40, channels=6, classes=5, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(classes, (n,), generator=g)
        t = torch.arange(length).float()
        freq = 0.15 + 0.12 * self.y.float()
        phase = torch.rand(n, channels, generator=g) * 6.28
        wave = torch.sin(freq[:, None, None] * t[None, :, None] + phase[:, None, :])
        self.x = wave + 0.6 * torch.randn(n, length, channels, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ConvFormer(nn.Module):
    def __init__(self, channels=6, d=48, classes=5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(channels, d, 5, stride=2, padding=2), nn.BatchNorm1d(d), nn.GELU(),
                                  nn.Conv1d(d, d, 3, padding=1), nn.BatchNorm1d(d), nn.GELU())
        self.encoder = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, activation="gelu", batch_first=True)
        self.fc = nn.Linear(d, classes)

    def forward(self, x):
        h = self.stem(x.transpose(1, 2)).transpose(1, 2)
        return self.fc(self.encoder(h).mean(1))


def main():
    torch.manual_seed(27)
    train = DataLoader(Sensors(), batch_size=32, shuffle=True, drop_last=True)
    model = ConvFormer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, nesterov=True)
    criterion = nn.CrossEntropyLoss()
    scaler = GradScaler("cpu")
    seen = 0
    for epoch in range(3):
        for x, y in train:
            optimizer.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
                loss = criterion(out, y)
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if seen % 16 == 0:
                acc = (out.argmax(1) == y).float().mean().item()
                print(f"epoch {epoch} step {seen} loss {loss.item():.4f} acc {acc:.2f}")
            seen += 1
    print(f"epoch {epoch} step {seen} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
