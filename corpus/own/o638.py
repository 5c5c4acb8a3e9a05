import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(31)


class SeriesDataset(Dataset):
    def __init__(self, n, seed, context=96, horizon=24):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(context + horizon).float()
        period = torch.tensor([8.0, 12.0, 24.0])[torch.randint(0, 3, (n,), generator=g)]
        phase = torch.rand(n, generator=g) * 2 * math.pi
        amp = 0.5 + 1.5 * torch.rand(n, generator=g)
        slope = 0.02 * torch.randn(n, generator=g)
        level = 3 * torch.randn(n, generator=g)
        carrier = torch.sin(2 * math.pi * t / period[:, None] + phase[:, None])
        carrier = carrier + 0.5 * torch.sign(torch.sin(4 * math.pi * t / period[:, None] + phase[:, None]))
        x = level[:, None] + slope[:, None] * t + amp[:, None] * carrier
        x = x + 0.1 * torch.randn(x.shape, generator=g)
        self.x, self.y = x[:, :context], x[:, context:]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class RevIN(nn.Module):
    def forward(self, x):
        self.mean = x.mean(-1, keepdim=True).detach()
        self.std = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        return (x - self.mean) / self.std

    def inverse(self, y):
        return y * self.std + self.mean


class PatchTST(nn.Module):
    def __init__(self, context=96, horizon=24, patch_len=8, stride=8, d_model=64, n_heads=4, e_layers=2):
        super().__init__()
        self.revin = RevIN()
        self.patch_len, self.stride = patch_len, stride
        n_patches = (context - patch_len) // stride + 1
        self.value_embedding = nn.Linear(patch_len, d_model)
        self.position = nn.Parameter(torch.randn(n_patches, d_model) * 0.1)
        layer = nn.TransformerEncoderLayer(d_model, n_heads, 2 * d_model, dropout=0.05, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, e_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(n_patches * d_model, horizon)

    def forward(self, x):
        z = self.revin(x).unfold(-1, self.patch_len, self.stride)
        z = self.encoder(self.value_embedding(z) + self.position)
        return self.revin.inverse(self.head(z.flatten(1)))


class ForecastModule(nn.Module):
    def __init__(self, lr=1e-3, min_lr=2e-5, max_epochs=10):
        super().__init__()
        self.net = PatchTST()
        self.lr, self.min_lr, self.max_epochs = lr, min_lr, max_epochs

    def training_step(self, batch):
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-4)
        gamma = (self.min_lr / self.lr) ** (1 / self.max_epochs)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=gamma)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(module, train_loader, val_loader):
    conf = module.configure_optimizers()
    optimizer, sched = conf["optimizer"], conf["lr_scheduler"]
    step = 0
    for epoch in range(module.max_epochs):
        module.train()
        for batch in train_loader:
            loss = module.training_step(batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            if sched["interval"] == "step":
                sched["scheduler"].step()
            if step % 25 == 0:
                print(f"step {step} mse {loss.item():.4f}")
            step += 1
        if sched["interval"] == "epoch":
            sched["scheduler"].step()
        module.eval()
        with torch.no_grad():
            val = torch.stack([module.training_step(b) for b in val_loader]).mean().item()
        print(f"epoch {epoch} val_mse {val:.4f}")


train_loader = DataLoader(SeriesDataset(2240, 1), batch_size=64, shuffle=True)
val_loader = DataLoader(SeriesDataset(256, 2), batch_size=128)
fit(ForecastModule(), train_loader, val_loader)
