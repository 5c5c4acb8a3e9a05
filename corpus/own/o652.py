import torch
import torch.nn as nn
import torch.nn.functional as F

MELS, FRAMES, WORDS = 24, 48, 10


def utterances(n, g, proto):
    y = torch.randint(0, WORDS, (n,), generator=g)
    base = proto[y]
    shift = torch.randint(0, 12, (n,), generator=g)
    x = torch.zeros(n, MELS, FRAMES)
    for i in range(n):
        s = int(shift[i])
        x[i, :, s : s + base.shape[-1]] = base[i]
    x = x * (0.6 + 0.8 * torch.rand(n, 1, 1, generator=g))
    x = x + 1.0 * torch.randn(x.shape, generator=g)
    return x * 4.0 - 30.0, y


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 5, stride, 2, bias=False)
        self.bn = nn.BatchNorm1d(cout)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.drop(F.silu(self.bn(self.conv(x))))


class KeywordSpotter(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.front = nn.Sequential(
            nn.BatchNorm1d(MELS), ConvBlock(MELS, dim, 2), ConvBlock(dim, dim, 1), ConvBlock(dim, dim, 2),
            ConvBlock(dim, dim, 1),
        )
        self.ctx = nn.TransformerEncoderLayer(dim, 4, 128, 0.1, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, WORDS)

    def forward(self, x):
        h = self.front(x).transpose(1, 2)
        return self.head(self.ctx(h).mean(1))


class Trainer:
    def __init__(self, model, train, valid, max_steps=210, batch=32, lr=1e-3, val_every=30):
        self.model = model
        self.train_set, self.valid_set = train, valid
        self.max_steps, self.batch, self.val_every = max_steps, batch, val_every
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        self.gen = torch.Generator().manual_seed(99)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = self.valid_set
        out = self.model(x)
        return F.cross_entropy(out, y).item(), (out.argmax(-1) == y).float().mean().item()

    def training_step(self, x, y):
        loss = F.cross_entropy(self.model(x), y, label_smoothing=0.05)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self):
        self.model.train()
        vl, va = self.validate()
        print(f"sanity check: valid loss {vl:.4f} acc {va:.3f}")
        x, y = self.train_set
        step = 0
        while step < self.max_steps:
            order = torch.randperm(len(y), generator=self.gen)
            for idx in order.split(self.batch):
                loss = self.training_step(x[idx], y[idx])
                step += 1
                if step % 10 == 0:
                    print(f"step {step:4d} loss {loss:.4f}")
                if step % self.val_every == 0:
                    vl, va = self.validate()
                    print(f"  valid loss {vl:.4f} acc {va:.3f}")
                if step >= self.max_steps:
                    break


if __name__ == "__main__":
    torch.manual_seed(41)
    g = torch.Generator().manual_seed(42)
    proto = F.avg_pool1d(torch.randn(WORDS, MELS, 38, generator=g), 3, 1) * 1.5
    Trainer(KeywordSpotter(), utterances(1500, g, proto), utterances(200, g, proto)).fit()
