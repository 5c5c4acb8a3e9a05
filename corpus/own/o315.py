import logging
import random
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(15, verbose=False)

PARTS = "ba ce di fo gu ha ki lo mu ne pa qui ro su te vo".split()
GROUPS = 12


class Names(Dataset):
    def __init__(self, n):
        rng = random.Random(3)
        rule = {p: rng.randrange(GROUPS) for p in PARTS}
        self.rows = []
        for _ in range(n):
            parts = rng.choices(PARTS, k=5)
            first, last = rule[parts[0]], rule[parts[-1]]
            self.rows.append((parts, (first + 2 * last) % GROUPS))
        self.vocab = {p: i for i, p in enumerate(sorted(PARTS))}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        parts, label = self.rows[i]
        return torch.tensor([self.vocab[p] for p in parts]), label


class Classifier(L.LightningModule):
    def __init__(self, data, d=64):
        super().__init__()
        self.data = data
        self.embed = nn.Embedding(64, d)
        self.pos = nn.Parameter(torch.randn(5, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(5 * d, 64)

    def on_train_start(self):
        d = self.embed.embedding_dim
        self.embed = nn.Embedding(len(self.data.vocab), d)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.head = nn.Linear(5 * d, GROUPS)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids) + self.pos).flatten(1))

    def training_step(self, batch, i):
        ids, label = batch
        logits = self(ids)
        loss = F.cross_entropy(logits, label)
        if i % 20 == 0:
            print(f"step {i} loss {loss.item():.4f} acc {(logits.argmax(1) == label).float().mean().item():.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)


names = Names(64 * 221)
loader = DataLoader(names, batch_size=64, shuffle=True)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                    enable_model_summary=False)
trainer.fit(Classifier(names), loader)
