import inspect
import logging
import tarfile
import warnings
import zipfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(23, verbose=False)

raw = inspect.getsource(tarfile) + inspect.getsource(zipfile)
symbols = sorted(set(raw))
index = {s: i for i, s in enumerate(symbols)}
stream = torch.tensor([index[s] for s in raw])
WINDOW = 49
windows = stream[: len(stream) // WINDOW * WINDOW].view(-1, WINDOW)
windows = windows[torch.randperm(len(windows))]


class CharModule(L.LightningModule):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(WINDOW, d)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 3 * d, 0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)
        self.history = []

    def forward(self, x):
        t = x.size(1)
        mask = torch.full((t, t), float("-inf")).triu(1)
        h = self.emb(x) + self.pos.weight[:t]
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h))

    def training_step(self, batch, _):
        x = batch[0]
        loss = F.cross_entropy(self(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        self.history.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.97)


class Report(L.Callback):
    def on_train_batch_end(self, trainer, module, *_):
        n = len(module.history)
        if n == 1 or n % 25 == 0:
            print(f"update {n} loss {sum(module.history[-8:]) / len(module.history[-8:]):.4f}")


module = CharModule(len(symbols))
PER_SHARD, BATCH = 5, 16
shards = [windows[i:i + PER_SHARD * BATCH] for i in range(0, len(windows) - PER_SHARD * BATCH, PER_SHARD * BATCH)]
quiet = dict(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
for shard in (shards * 4)[:50]:
    trainer = L.Trainer(max_epochs=1, callbacks=[Report()], **quiet)
    trainer.fit(module, DataLoader(TensorDataset(shard), batch_size=BATCH, shuffle=True))
