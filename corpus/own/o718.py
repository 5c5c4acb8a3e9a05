import logging
import math
import warnings
import lightning as Lt
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
Lt.seed_everything(9)


def tiles(n):
    y = torch.randint(0, 6, (n,))
    yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    ang = (y.float() * math.pi / 6)[:, None, None] + 0.08 * torch.randn(n, 1, 1)
    ph = torch.rand(n, 1, 1) * 2 * math.pi
    img = torch.sin((xx * torch.cos(ang) + yy * torch.sin(ang)) * 1.3 + ph)
    return (img + 0.8 * torch.randn_like(img)).unsqueeze(1), y


class ViT(Lt.LightningModule):
    def __init__(self, d=64, depth=2, heads=4, warmup=80, total=288):
        super().__init__()
        self.save_hyperparameters()
        self.patch = nn.Conv2d(1, d, 4, 4)
        self.pos = nn.Parameter(torch.randn(1, 17, d) * 0.02)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        enc = nn.TransformerEncoderLayer(d, heads, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(enc, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 6))

    def forward(self, x):
        t = self.patch(x).flatten(2).transpose(1, 2)
        t = torch.cat([self.cls.expand(len(t), -1, -1), t], 1) + self.pos
        return self.head(self.enc(t)[:, 0])

    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self(x), y, label_smoothing=0.05)
        if self.global_step % 48 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        self.log("acc", (self(x).argmax(-1) == y).float().mean(), on_epoch=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} val acc {float(self.trainer.callback_metrics['acc']):.3f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=5e-4, weight_decay=0.02)
        w, t = self.hparams.warmup, self.hparams.total

        def factor(s):
            if s < w:
                return (s + 1) / w
            return 0.5 * (1 + math.cos(math.pi * min(1.0, (s - w) / (t - w))))

        sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
        return {"optimizer": opt, "lr_scheduler": sched}


train = DataLoader(TensorDataset(*tiles(2304)), batch_size=48, shuffle=True)
val = DataLoader(TensorDataset(*tiles(400)), batch_size=100)
trainer = Lt.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(ViT(), train, val)
