import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from torch.utils.data import DataLoader, TensorDataset
import logging
import warnings

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
CLASSES, SIZE = 6, 18


def draw(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(SIZE).float(), torch.arange(SIZE).float(), indexing="ij")
    cx = 6 + 8 * torch.rand(n, 1, 1, generator=g)
    cy = 6 + 8 * torch.rand(n, 1, 1, generator=g)
    r = torch.sqrt((xx - cx) ** 2 + (yy - cy) ** 2)
    box = torch.maximum((xx - cx).abs(), (yy - cy).abs())
    shapes = torch.stack((r < 4, (r < 5) & (r > 3), box < 3.5, (box < 4.5) & (box > 2.5), (xx - cx).abs() < 1.5, (yy - cy).abs() < 1.5), 1)
    ink = shapes[torch.arange(n), y].float()
    colour = 0.4 + 0.6 * torch.rand(n, 3, 1, 1, generator=g)
    return colour * ink[:, None] + 0.25 * torch.randn(n, 3, SIZE, SIZE, generator=g), y


class LayerNorm2d(nn.Module):
    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class NextBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 5, padding=2, groups=c)
        self.norm = LayerNorm2d(c)
        self.pw1 = nn.Conv2d(c, 2 * c, 1)
        self.pw2 = nn.Conv2d(2 * c, c, 1)

    def forward(self, x):
        return x + self.pw2(F.gelu(self.pw1(self.norm(self.dw(x)))))


class ShapeNet(L.LightningModule):
    def __init__(self, c=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, stride=2, padding=1), LayerNorm2d(c))
        self.blocks = nn.Sequential(NextBlock(c), NextBlock(c))
        self.last = LayerNorm2d(c)
        self.head = nn.Linear(c, CLASSES)

    def forward(self, x):
        return self.head(self.last(self.blocks(self.stem(x))).mean((2, 3)))

    def training_step(self, batch, i):
        x, y = batch
        out = self(x)
        loss = F.cross_entropy(out, y)
        if i % 10 == 0 or i == self.trainer.num_training_batches - 1:
            print(f"batch {i} train_loss {loss.item():.4f} acc {(out.argmax(-1) == y).float().mean():.2f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.02)


if __name__ == "__main__":
    L.seed_everything(17, verbose=False)
    loader = DataLoader(TensorDataset(*draw(3120, 1)), batch_size=24, shuffle=True)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(ShapeNet(), loader)
