import logging
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
CLASSES = 16


def make_images(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    angle = (y % 8) * (torch.pi / 8)
    freq = torch.where(y < 8, 0.5, 1.1)
    phase = torch.rand(n, generator=g) * 6.28
    u = xx[None] * angle.cos()[:, None, None] + yy[None] * angle.sin()[:, None, None]
    img = torch.sin(u * freq[:, None, None] + phase[:, None, None])
    img = img + 0.5 * torch.randn(img.shape, generator=g)
    return img.unsqueeze(1), y


class ViT(nn.Module):
    def __init__(self, dim=64, depth=2, heads=4, patch=6):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, (24 // patch) ** 2 + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, img):
        x = self.embed(img).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.encoder(x)[:, 0])


class Classifier(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = ViT()

    def forward(self, img):
        return self.net(img).softmax(dim=-1)

    def training_step(self, batch, batch_idx):
        img, y = batch
        out = self(img)
        loss = F.cross_entropy(out, y)
        if self.global_step % 20 == 0 or self.global_step == self.trainer.max_steps - 1:
            acc = (out.argmax(-1) == y).float().mean()
            print(f"step {self.global_step} loss {loss.item():.4f} acc {acc.item():.3f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


if __name__ == "__main__":
    L.seed_everything(5, verbose=False)
    train = DataLoader(TensorDataset(*make_images(4096, 1)), batch_size=32, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_steps=120, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(Classifier(1e-3), train)
