import math
import warnings
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from torch.utils.data import Dataset, DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(3, verbose=False)

CONTEXT, HORIZON, PATCH = 96, 12, 8


def make_panel(n_sites=24, length=900, seed=0):
    rng = np.random.default_rng(seed)
    t = np.arange(length)
    out = []
    for _ in range(n_sites):
        p1, p2 = rng.choice([12, 16, 20, 24]), rng.choice([30, 40, 48])
        a1, a2 = rng.uniform(0.6, 1.4, 2)
        y = a1 * np.sin(2 * np.pi * t / p1 + rng.uniform(0, 6.28))
        y += a2 * np.sin(2 * np.pi * t / p2 + rng.uniform(0, 6.28))
        out.append(y + 0.08 * rng.standard_normal(length))
    return np.stack(out).astype(np.float32)


class Windows(Dataset):
    def __init__(self, panel, start, stop, stride):
        self.panel = torch.from_numpy(panel)
        last = stop - CONTEXT - HORIZON
        self.index = [(s, i) for s in range(panel.shape[0]) for i in range(start, last, stride)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, k):
        s, i = self.index[k]
        w = self.panel[s, i: i + CONTEXT + HORIZON]
        return w[:CONTEXT], w[CONTEXT:]


class PositionalEncoding(nn.Module):
    def __init__(self, d, max_len=64):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(1, max_len, d)
        pe[0, :, 0::2] = torch.sin(pos * div)
        pe[0, :, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class Forecaster(L.LightningModule):
    def __init__(self, d_model=64, nhead=4, layers=2, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(PATCH, d_model)
        self.pos = PositionalEncoding(d_model)
        block = nn.TransformerEncoderLayer(d_model=d_model, nhead=nhead, dim_feedforward=128,
                                           dropout=0.0)
        self.encoder = nn.TransformerEncoder(block, num_layers=layers, enable_nested_tensor=False)
        self.head = nn.Linear(d_model, HORIZON)
        self.history = []

    def forward(self, x):
        patches = x.unfold(1, PATCH, PATCH)
        h = self.pos(self.embed(patches))
        h = self.encoder(h)
        return self.head(h[:, -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.history.append(loss.item())
        if batch_idx % 40 == 0:
            print(f"epoch {self.current_epoch} step {self.global_step:4d} train mse {loss.item():.4f}")
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        pred = self(x)
        self.log("val_mse", F.mse_loss(pred, y), on_epoch=True)
        self.log("val_naive", F.mse_loss(x[:, -1:].expand_as(y), y), on_epoch=True)

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        if not self.trainer.sanity_checking:
            print(f"  val mse {m['val_mse']:.4f}  (persistence {m['val_naive']:.4f})")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-3)
        total = self.trainer.estimated_stepping_batches
        sch = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=total, pct_start=0.2)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sch, "interval": "step"}}


def main():
    panel = make_panel()
    train = DataLoader(Windows(panel, 0, 700, 5), batch_size=32, shuffle=True, drop_last=True)
    val = DataLoader(Windows(panel, 700, 900, 9), batch_size=32)
    model = Forecaster()
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                        gradient_clip_val=1.0)
    trainer.fit(model, train, val)
    h = model.history
    print(f"first 20 steps {np.mean(h[:20]):.4f}  last 20 steps {np.mean(h[-20:]):.4f}")


if __name__ == "__main__":
    main()
