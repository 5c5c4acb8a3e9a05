import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
SIZE, PATCH, CLASSES = 16, 4, 5


def texture(kind, n, gen):
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    angle = kind * math.pi / CLASSES + 0.12 * torch.randn(n, 1, 1, generator=gen)
    phase = 2 * math.pi * torch.rand(n, 1, 1, generator=gen)
    img = torch.sin(1.1 * (xx * angle.cos() + yy * angle.sin()) + phase)
    img = img + 0.6 * torch.randn(n, SIZE, SIZE, generator=gen)
    return TensorDataset(img.unsqueeze(1), torch.full((n,), kind))


class Textures(L.LightningDataModule):
    def setup(self, stage=None):
        gen = torch.Generator().manual_seed(31)
        self.train = ConcatDataset([texture(k, 256, gen) for k in range(CLASSES)])
        self.val = ConcatDataset([texture(k, 40, gen) for k in range(CLASSES)])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, num_workers=0, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=100)


class TinyViT(L.LightningModule):
    def __init__(self, d=64, depth=2, heads=4, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Conv2d(1, d, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(0.02 * torch.randn(1, (SIZE // PATCH) ** 2 + 1, d))
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x):
        h = self.embed(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(h.size(0), -1, -1), h], 1) + self.pos
        return self.head(self.encoder(h)[:, 0])

    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        if self.global_step % 10 == 0 or self.global_step == 159:
            print(f"step {self.global_step} train loss {loss.item():.4f}")
        return loss

    def on_validation_epoch_start(self):
        self.hits, self.total, self.vloss = 0, 0, 0.0

    def validation_step(self, batch, i):
        x, y = batch
        out = self(x)
        self.vloss += F.cross_entropy(out, y, reduction="sum").item()
        self.hits += (out.argmax(-1) == y).sum().item()
        self.total += len(y)

    def on_validation_epoch_end(self):
        print(f"epoch {self.current_epoch} val loss {self.vloss / self.total:.4f} val acc {self.hits / self.total:.3f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)


if __name__ == "__main__":
    L.seed_everything(30, verbose=False)
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(TinyViT(), Textures())
