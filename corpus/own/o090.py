import math

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
L.seed_everything(13, verbose=False)

EVENTS, LENGTH, TAGS = 120, 20, 12


def build(n):
    x = torch.randint(EVENTS, (n, LENGTH))
    trigger = torch.arange(TAGS) * 3
    y = (x[:, :, None] == trigger).any(1)
    return TensorDataset(x, y.float())


class Tagger(L.LightningModule):
    def __init__(self, d=48, prior=0.01):
        super().__init__()
        self.emb = nn.Embedding(EVENTS, d)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, TAGS))
        nn.init.constant_(self.head[1].bias, -math.log((1 - prior) / prior))

    def forward(self, x):
        h = self.encoder(self.emb(x) + self.pos)
        return self.head(h.mean(1))

    def training_step(self, batch, idx):
        x, y = batch
        loss = F.binary_cross_entropy_with_logits(self(x), y)
        if idx % 20 == 0 or idx == 179:
            print(f"batch {idx:3d} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Tagger(), DataLoader(build(180 * 32), batch_size=32, shuffle=True))
