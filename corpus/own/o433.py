import math
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED, SIZE, PATCH, DIM = 11, 32, 4, 64
BATCH, EPOCHS = 64, 5


def render(n, rng):
    imgs = rng.normal(0, 0.25, (n, 1, SIZE, SIZE)).astype("float32")
    labels = rng.integers(0, 16, n)
    for i, lab in enumerate(labels):
        r, c = divmod(int(lab), 4)
        y = r * 8 + rng.integers(0, 4)
        x = c * 8 + rng.integers(0, 4)
        imgs[i, 0, y:y + 5, x:x + 5] += 1.5

        y2, x2 = rng.integers(0, SIZE - 5, 2)
        imgs[i, 0, y2:y2 + 5, x2:x2 + 5] -= 1.0
    return torch.from_numpy(imgs), torch.from_numpy(labels)


class SinusoidalEncoding(nn.Module):
    def __init__(self, dim, max_len=512, p=0.0):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
        pe = torch.zeros(max_len, 1, dim)
        pe[:, 0, 0::2] = torch.sin(pos * div)
        pe[:, 0, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        x = x + self.pe[:x.size(0)]
        return self.drop(x)


class TinyViT(nn.Module):
    def __init__(self, n_classes=16):
        super().__init__()
        self.stem = nn.Conv2d(1, DIM, PATCH, stride=PATCH)
        self.enc = SinusoidalEncoding(DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, n_classes)

    def forward(self, img):
        tokens = self.stem(img).flatten(2).transpose(1, 2)
        tokens = self.body(self.enc(tokens))
        return self.head(self.norm(tokens).mean(1))


class Trainer:
    def __init__(self, model, train_dl, test_dl, lr=1e-3):
        self.model, self.train_dl, self.test_dl = model, train_dl, test_dl
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        self.crit = nn.CrossEntropyLoss()
        self.step = 0

    def fit(self, epochs):
        for ep in range(epochs):
            self.model.train()
            for img, lab in self.train_dl:
                self.opt.zero_grad()
                loss = self.crit(self.model(img), lab)
                loss.backward()
                self.opt.step()
                if self.step % 10 == 0:
                    print(f"[{ep}:{self.step}] train_loss={loss.item():.4f}", flush=True)
                self.step += 1
            print(f"epoch {ep} test_acc={self.test():.4f}", flush=True)

    @torch.no_grad()
    def test(self):
        self.model.eval()
        hit = sum((self.model(i).argmax(1) == l).sum().item() for i, l in self.test_dl)
        return hit / len(self.test_dl.dataset)


if __name__ == "__main__":
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    train_dl = DataLoader(TensorDataset(*render(2560, rng)), BATCH, shuffle=True, drop_last=True)
    test_dl = DataLoader(TensorDataset(*render(640, rng)), BATCH)
    Trainer(TinyViT(), train_dl, test_dl).fit(EPOCHS)
