import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(14)
rs = np.random.RandomState(14)

CONTEXT, HORIZON, PATCH = 96, 12, 8
N = 4000


def synthesise():
    t = np.arange(N)
    level = np.cumsum(rs.normal(0, 0.02, N)) + 0.0004 * t
    daily = (1 + 0.3 * np.sin(2 * np.pi * t / 900)) * np.sin(2 * np.pi * t / 24)
    weekly = 0.6 * np.cos(2 * np.pi * t / 168) + 0.25 * np.sin(4 * np.pi * t / 24)
    noise = np.zeros(N)
    for i in range(1, N):
        noise[i] = 0.6 * noise[i - 1] + rs.normal(0, 0.1)
    return (level + daily + weekly + noise).astype(np.float32)


series = torch.from_numpy(synthesise())
n_train, n_val = int(0.7 * N), int(0.15 * N)
mu, sd = series[:n_train].mean(), series[:n_train].std()
series = (series - mu) / sd
train_part = series[:n_train]
val_part = series[n_train - CONTEXT: n_train + n_val]
test_part = series[n_train + n_val - CONTEXT:]


class Windows(Dataset):
    def __init__(self, s, stride=1):
        self.w = s.unfold(0, CONTEXT + HORIZON, stride)

    def __len__(self):
        return len(self.w)

    def __getitem__(self, i):
        w = self.w[i]
        return w[:CONTEXT], w[CONTEXT:]


class PatchForecaster(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        n = CONTEXT // PATCH
        self.embed = nn.Linear(PATCH, d)
        self.pos = nn.Parameter(0.02 * torch.randn(n, d))
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(n * d, HORIZON)

    def forward(self, x):
        m = x.mean(1, keepdim=True)
        s = x.std(1, keepdim=True, unbiased=False) + 1e-5
        z = ((x - m) / s).unflatten(1, (-1, PATCH))
        h = self.enc(self.embed(z) + self.pos)
        return self.head(h.flatten(1)) * s + m


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    se = ae = naive = n = 0.0
    for x, y in loader:
        p = model(x)
        se += F.mse_loss(p, y, reduction="sum").item()
        ae += (p - y).abs().sum().item()
        naive += (x[:, CONTEXT - 24: CONTEXT - 24 + HORIZON] - y).pow(2).sum().item()
        n += y.numel()
    model.train()
    return se / n, ae / n, naive / n


train_loader = DataLoader(Windows(train_part), batch_size=64, shuffle=True, drop_last=True)
val_loader = DataLoader(Windows(val_part, 3), batch_size=256)
test_loader = DataLoader(Windows(test_part, 3), batch_size=256)

EPOCHS = 7
model = PatchForecaster()
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1.5e-3, epochs=EPOCHS, steps_per_epoch=len(train_loader), pct_start=0.2)

best, best_state, step = float("inf"), None, 0
for epoch in range(EPOCHS):
    total = 0.0
    for x, y in train_loader:
        loss = F.huber_loss(model(x), y, delta=1.0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step == 0:
            print(f"step 0 loss {loss.item():.4f}")
        total += loss.item()
        step += 1
    mse, mae, naive = evaluate(model, val_loader)
    print(f"epoch {epoch} step {step} train huber {total / len(train_loader):.4f} | val mse {mse:.4f} mae {mae:.4f} (seasonal naive mse {naive:.4f})")
    if mse < best:
        best, best_state = mse, {k: v.clone() for k, v in model.state_dict().items()}

model.load_state_dict(best_state)
mse, mae, naive = evaluate(model, test_loader)
print(f"test mse {mse:.4f} mae {mae:.4f} (seasonal naive mse {naive:.4f})")
