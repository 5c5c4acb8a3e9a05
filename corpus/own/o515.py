import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CARDS = [50, 12, 7, 400]
N_NUM = 8


def make_table(n, seed):
    g = torch.Generator().manual_seed(seed)
    cats = torch.stack([(torch.rand(n, generator=g) ** 1.5 * c).long().clamp_max(c - 1) for c in CARDS], 1)
    nums = torch.randn(n, N_NUM, generator=g)
    eff = [torch.randn(c, generator=g) for c in CARDS]
    slope = 0.7 * torch.randn(CARDS[1], generator=g)
    y = (eff[0][cats[:, 0]] + 0.5 * eff[2][cats[:, 2]] + 0.6 * eff[3][cats[:, 3]]
         + slope[cats[:, 1]] * nums[:, 0] + torch.sin(2 * nums[:, 1]) + 0.5 * nums[:, 2] * nums[:, 3])
    y = 40.0 + 12.0 * (y + 0.3 * torch.randn(n, generator=g))
    nums = nums * torch.linspace(0.1, 30, N_NUM) + torch.linspace(-5, 100, N_NUM)
    nums[torch.rand(nums.shape, generator=g) < 0.02] = float("nan")
    return cats, nums, y


class TableData(L.LightningDataModule):
    def __init__(self, n=24000, batch_size=256):
        super().__init__()
        cats, nums, y = make_table(n, seed=11)
        n_tr = int(0.8 * n)
        raw = nums[:n_tr]
        mean = raw.nanmean(0)
        std = ((raw - mean) ** 2).nanmean(0).sqrt()
        missing = nums.isnan().float()
        nums = torch.nan_to_num((nums - mean) / std, nan=0.0)
        nums = torch.cat([nums, missing], 1)
        cats = cats + 1
        for j in range(cats.shape[1]):
            seen = torch.zeros(CARDS[j] + 1, dtype=torch.bool)
            seen[cats[:n_tr, j]] = True
            cats[~seen[cats[:, j]], j] = 0
        self.y_mean, self.y_std = y[:n_tr].mean().item(), y[:n_tr].std().item()
        y = (y - self.y_mean) / self.y_std
        self.train = TensorDataset(cats[:n_tr], nums[:n_tr], y[:n_tr])
        self.val = TensorDataset(cats[n_tr:], nums[n_tr:], y[n_tr:])
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, 1000)


class TabularNet(L.LightningModule):
    def __init__(self, y_std, max_lr=4e-3, total_steps=300):
        super().__init__()
        dims = [min(32, math.ceil(1.6 * c ** 0.56)) for c in CARDS]
        self.emb = nn.ModuleList(nn.Embedding(c + 1, d) for c, d in zip(CARDS, dims))
        for e in self.emb:
            nn.init.normal_(e.weight, std=0.05)
        width = sum(dims) + 2 * N_NUM
        self.emb_drop = nn.Dropout(0.05)
        self.trunk = nn.Sequential(
            nn.Linear(width, 128, bias=False), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.05),
            nn.Linear(128, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Linear(64, 1))
        self.y_std, self.max_lr, self.total_steps = y_std, max_lr, total_steps
        self.sq = []

    def forward(self, cats, nums):
        e = torch.cat([m(c) for m, c in zip(self.emb, cats.unbind(1))], -1)
        return self.trunk(torch.cat([self.emb_drop(e), nums], -1)).squeeze(-1)

    def training_step(self, batch, i):
        cats, nums, y = batch
        loss = F.mse_loss(self(cats, nums), y)
        if self.global_step % 40 == 0 or self.global_step == self.total_steps - 1:
            print(f"step {self.global_step:4d} train mse {loss.item():.4f}")
        return loss

    def validation_step(self, batch, i):
        cats, nums, y = batch
        self.sq.append((self(cats, nums) - y).square())

    def on_validation_epoch_end(self):
        mse = torch.cat(self.sq).mean().item()
        self.sq.clear()
        print(f"   epoch {self.current_epoch}: validation R2 {1 - mse:.4f}  rmse {self.y_std * mse ** 0.5:.3f} (original units)")

    def configure_optimizers(self):
        decay = [p for n, p in self.trunk.named_parameters() if p.ndim > 1]
        rest = [p for p in self.parameters() if not any(p is q for q in decay)]
        opt = torch.optim.AdamW([{"params": decay, "weight_decay": 1e-2},
                                 {"params": rest, "weight_decay": 0.0}], lr=self.max_lr)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.max_lr, total_steps=self.total_steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(3, verbose=False)
    data = TableData()
    epochs = 4
    per_epoch = len(data.train) // data.batch_size
    net = TabularNet(data.y_std, total_steps=epochs * per_epoch)
    trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                        gradient_clip_val=5.0)
    trainer.fit(net, datamodule=data)
