import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    shapes = torch.randn(6, 64, generator=g)
    kind = torch.randint(0, 6, (n,), generator=g)
    shift = torch.randint(0, 3, (n,), generator=g)
    x = torch.stack([shapes[k].roll(int(s)) for k, s in zip(kind, shift)]) + 0.5 * torch.randn(n, 64, generator=g)
    return x.view(n, 16, 4), kind


class WaveClassifier(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.pos = nn.Parameter(torch.randn(16, width) * 0.5)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 6)
        self.seen = []

    def forward(self, x):
        h = self.encoder(self.inp(x) + self.pos)
        return self.head(self.norm(h).mean(1)).float()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x.to(self.inp.weight.dtype)), y)
        self.seen.append(loss.item())
        if self.global_step % 20 == 0:
            last = self.seen[-20:]
            print(f"step {self.global_step} loss {sum(last) / len(last):.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, weight_decay=0.0)


L.seed_everything(21, verbose=False)
loader = DataLoader(TensorDataset(*waves(6400, 3)), batch_size=16, shuffle=True)
trainer = L.Trainer(max_steps=200, max_epochs=-1, accelerator="cpu", precision="bf16-true", logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
model = WaveClassifier()
trainer.fit(model, loader)
print(f"final loss {sum(model.seen[-20:]) / 20:.4f}")
