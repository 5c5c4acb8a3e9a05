import logging
import random
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*num_workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

L.seed_everything(17, verbose=False)

VOCAB = ["<pad>", "<bos>", "<eos>"] + list("0123456789+-=")
IDX = {c: i for i, c in enumerate(VOCAB)}
PAD, BOS, EOS = 0, 1, 2
MAXLEN = 10


def sample(rng):
    a, b = rng.randint(0, 49), rng.randint(0, 49)
    if rng.random() < 0.5:
        s = f"{a}+{b}={a + b}"
    else:
        a, b = max(a, b), min(a, b)
        s = f"{a}-{b}={a - b}"
    ids = [BOS] + [IDX[c] for c in s] + [EOS]
    return ids + [PAD] * (MAXLEN + 1 - len(ids))


def make_sets():
    rng = random.Random(17)
    rows = sorted({tuple(sample(rng)) for _ in range(12000)})
    rng.shuffle(rows)
    data = torch.tensor(rows)
    return TensorDataset(data[400:]), TensorDataset(data[:400])


class TinyLM(L.LightningModule):
    def __init__(self, dim=48, heads=4, layers=2, lr=4e-3, max_steps=270):
        super().__init__()
        self.save_hyperparameters()
        self.tok = nn.Embedding(len(VOCAB), dim, padding_idx=PAD)
        self.pos = nn.Embedding(MAXLEN, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, len(VOCAB))
        self.register_buffer("causal", torch.triu(torch.ones(MAXLEN, MAXLEN, dtype=torch.bool), 1), persistent=False)

    def forward(self, ids):
        t = ids.size(1)
        x = self.tok(ids) + self.pos.weight[:t]
        return self.head(self.body(x, mask=self.causal[:t, :t]))

    def _step(self, batch):
        (ids,) = batch
        x, y = ids[:, :-1], ids[:, 1:]
        logits = self(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=PAD)
        return loss, logits, y

    def training_step(self, batch, batch_idx):
        loss, _, _ = self._step(batch)
        if self.global_step % 40 == 0:
            print(f"step {self.global_step:4d}  train loss {loss.item():.4f}")
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, logits, y = self._step(batch)
        after = (y == IDX["="]).long().cumsum(1).bool() & (y != IDX["="]) & (y != PAD)
        acc = (logits.argmax(-1) == y)[after].float().mean()
        self.log_dict({"val_loss": loss, "val_answer_acc": acc}, on_epoch=True, batch_size=len(y))

    def on_validation_epoch_end(self):
        if self.trainer.sanity_checking:
            return
        m = self.trainer.callback_metrics
        print(f"   epoch {self.current_epoch}: val loss {m['val_loss'].item():.4f}  answer token accuracy {m['val_answer_acc'].item():.3f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.lr, total_steps=self.hparams.max_steps, pct_start=0.15)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    train, val = make_sets()
    model = TinyLM()
    trainer = L.Trainer(
        max_steps=model.hparams.max_steps, accelerator="cpu", devices=1, gradient_clip_val=1.0,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    val_loader = DataLoader(val, batch_size=200)
    trainer.fit(model, DataLoader(train, batch_size=64, shuffle=True, drop_last=True), val_loader)
    trainer.validate(model, val_loader, verbose=False)


if __name__ == "__main__":
    main()
