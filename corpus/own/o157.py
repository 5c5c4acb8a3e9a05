import random
import warnings
import logging

import torch
torch.set_num_threads(1)
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from torch.utils.data import DataLoader, IterableDataset
from pydoc_data.topics import topics

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(11)


class HelpStream(IterableDataset):
    def __init__(self, keys, length, per_epoch, seed):
        self.text = "\n".join(topics[k] for k in keys).encode("ascii", "ignore")
        self.length, self.per_epoch, self.seed = length, per_epoch, seed
        self.passes = 0

    def __iter__(self):
        rng = random.Random(self.seed)
        self.passes += 1
        for _ in range(self.per_epoch):
            i = rng.randrange(len(self.text) - self.length - 1)
            chunk = torch.tensor(list(self.text[i:i + self.length + 1]))
            yield chunk[:-1], chunk[1:]


class ByteModel(L.LightningModule):
    def __init__(self, dim=80, depth=2, length=64):
        super().__init__()
        self.tok = nn.Embedding(128, dim)
        self.pos = nn.Parameter(torch.randn(length, dim) * 0.02)
        enc = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(enc, depth, enable_nested_tensor=False)
        self.out = nn.Linear(dim, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x):
        return self.out(self.body(self.tok(x) + self.pos, mask=self.mask, is_causal=True))

    def _loss(self, batch):
        x, y = batch
        return F.cross_entropy(self(x).flatten(0, 1), y.flatten())

    def training_step(self, batch, i):
        loss = self._loss(batch)
        if self.global_step % 20 == 0:
            print(f"step {self.global_step} train loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, i):
        self.log("val", self._loss(batch))

    def on_validation_epoch_end(self):
        if self.current_epoch % 6 == 5:
            print(f"epoch {self.current_epoch} held-out {self.trainer.callback_metrics['val'].item():.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1.5e-3)


keys = sorted(topics)
train = HelpStream(keys[:-8], 64, 48, seed=3)
held = HelpStream(keys[-8:], 64, 24, seed=99)
trainer = L.Trainer(max_epochs=36, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
                    check_val_every_n_epoch=6, gradient_clip_val=1.0)
trainer.fit(ByteModel(), DataLoader(train, batch_size=12), DataLoader(held, batch_size=12))
