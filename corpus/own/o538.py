import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
rng = np.random.default_rng(11)
SIZE, PATCH, N_CLASS = 24, 6, 6


def draw(kind):
    yy, xx = np.mgrid[:SIZE, :SIZE].astype(np.float32)
    cx, cy = rng.uniform(8, SIZE - 8, 2)
    r = rng.uniform(5, 7)
    dx, dy = xx - cx, yy - cy
    if kind == 0:
        m = dx**2 + dy**2 < r**2
    elif kind == 1:
        d = np.sqrt(dx**2 + dy**2)
        m = (d < r) & (d > r - 2)
    elif kind == 2:
        m = (abs(dx) < r * 0.85) & (abs(dy) < r * 0.85)
    elif kind == 3:
        m = ((abs(dx) < 1.3) & (abs(dy) < r)) | ((abs(dy) < 1.3) & (abs(dx) < r))
    elif kind == 4:
        m = (abs(dx) < r) & (abs(dy) < r) & (np.floor(dy / 2) % 2 == 0)
    else:
        m = (abs(abs(dx) - abs(dy)) < 1.6) & (abs(dx) < r) & (abs(dy) < r)
    fg, bg = rng.uniform(0.6, 1.0), rng.uniform(0.0, 0.3)
    img = np.where(m, fg, bg) + rng.normal(0, 0.1, (SIZE, SIZE))
    return img.astype(np.float32)


def make(n):
    y = rng.integers(0, N_CLASS, n)
    x = np.stack([draw(k) for k in y])[:, None]
    return torch.from_numpy(x), torch.from_numpy(y)


class ViT(nn.Module):
    def __init__(self, dim=64, depth=2, heads=4):
        super().__init__()
        n = (SIZE // PATCH) ** 2
        self.patchify = nn.Conv2d(1, dim, kernel_size=PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.empty(1, n + 1, dim))
        nn.init.trunc_normal_(self.pos, std=0.02)
        nn.init.trunc_normal_(self.cls, std=0.02)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, activation="gelu",
                                       batch_first=True, norm_first=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, N_CLASS)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, img):
        x = self.patchify(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def augment(x):
    flip_h = torch.rand(len(x), 1, 1, 1) < 0.5
    flip_v = torch.rand(len(x), 1, 1, 1) < 0.5
    x = torch.where(flip_h, x.flip(3), x)
    return torch.where(flip_v, x.flip(2), x)


x_train, y_train = make(2400)
x_val, y_val = make(300)
mean, std = x_train.mean(), x_train.std()
x_train, x_val = (x_train - mean) / std, (x_val - mean) / std

EPOCHS, BATCH = 7, 48
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=BATCH, shuffle=True, drop_last=True)
model = ViT()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
total = EPOCHS * len(loader)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=total, pct_start=0.15)
loss_fn = nn.CrossEntropyLoss()

step = 0
for epoch in range(EPOCHS):
    model.train()
    seen = correct = 0
    running = 0.0
    for xb, yb in loader:
        out = model(augment(xb))
        loss = loss_fn(out, yb)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step == 0:
            print(f"step 0  loss {loss.item():.4f}")
        step += 1
        running += loss.item() * len(yb)
        correct += (out.argmax(1) == yb).sum().item()
        seen += len(yb)
    model.eval()
    with torch.no_grad():
        logits = model(x_val)
        vl, va = loss_fn(logits, y_val).item(), (logits.argmax(1) == y_val).float().mean().item()
    print(f"epoch {epoch + 1}  step {step}  train loss {running / seen:.4f} acc {correct / seen:.3f}  val loss {vl:.4f} acc {va:.3f}")
