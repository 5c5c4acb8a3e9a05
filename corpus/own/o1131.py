import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

CONTEXT, HORIZON, PATCH = 96, 24, 8


def make_series(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(CONTEXT + HORIZON).float()[None]
    period = torch.tensor([12.0, 24.0, 32.0])[torch.randint(3, (n, 1), generator=g)]
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    amp = 0.5 + torch.rand(n, 1, generator=g)
    slope = (torch.rand(n, 1, generator=g) - 0.5) * 0.02
    week = 0.5 * torch.sin(2 * math.pi * t / 48 + torch.rand(n, 1, generator=g) * 2 * math.pi)
    y = amp * torch.sin(2 * math.pi * t / period + phase) + week + slope * t
    y = y + 0.15 * torch.randn(y.shape, generator=g)
    return TensorDataset(y[:, :CONTEXT], y[:, CONTEXT:])


class PatchForecaster(L.LightningModule):
    def __init__(self, d=64, heads=4, layers=2, lr=5e-4, warmup_steps=100, max_steps=500):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(PATCH, d)
        self.pos = nn.Parameter(torch.randn(1, CONTEXT // PATCH, d) * 0.02)
        block = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d * (CONTEXT // PATCH), HORIZON)

    def forward(self, x):
        z = self.embed(x.unfold(1, PATCH, PATCH)) + self.pos
        return self.head(self.norm(self.encoder(z)).flatten(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss)
        if self.global_step % 30 == 0:
            print(f"step {self.global_step} train_loss {loss.item():.4f}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mse", nn.functional.mse_loss(self(x), y), on_epoch=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} val_mse {self.trainer.callback_metrics['val_mse'].item():.4f}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)

        def scale(step):
            w, m = self.hparams.warmup_steps, self.hparams.max_steps
            if step < w:
                return (step + 1) / w
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - w) / (m - w))))

        sched = torch.optim.lr_scheduler.LambdaLR(opt, scale)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched}}


if __name__ == "__main__":
    L.seed_everything(5, verbose=False)
    train = DataLoader(make_series(4000, 1), batch_size=32, shuffle=True)
    val = DataLoader(make_series(500, 2), batch_size=250)
    model = PatchForecaster()
    trainer = L.Trainer(max_steps=500, accelerator="cpu", devices=1, logger=False, gradient_clip_val=1.0,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, train, val)
