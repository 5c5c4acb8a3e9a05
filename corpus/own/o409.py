import copy

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import logging
import warnings

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
KINDS, STEPS, CH = 10, 16, 8


def series(n, seed):
    proto = torch.randn(KINDS, STEPS, CH, generator=torch.Generator().manual_seed(600))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(KINDS, (n,), generator=g)
    return proto[y] + 0.6 * torch.randn(n, STEPS, CH, generator=g), y


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inp = nn.Linear(CH, d)
        self.pos = nn.Parameter(0.1 * torch.randn(STEPS, d))
        self.layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(self.inp(x) + self.pos).mean(1)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, o))


class BYOL(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(Encoder(), mlp(48, 32))
        self.predictor = mlp(32, 32)
        self.target = copy.deepcopy(self.online)
        self.target.requires_grad_(False)

    def augment(self, x):
        keep = (torch.rand(len(x), STEPS, 1) > 0.2).float()
        return (x + 0.3 * torch.randn_like(x)) * keep

    def side(self, a, b):
        with torch.no_grad():
            t = F.normalize(self.target(b), dim=-1)
        return -(F.normalize(self.predictor(self.online(a)), dim=-1) * t).sum(-1).mean()

    def training_step(self, batch, i):
        a, b = self.augment(batch[0]), self.augment(batch[0])
        loss = 0.5 * (self.side(a, b) + self.side(b, a))
        if self.global_step % 20 == 0 or self.global_step == 159:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def on_train_batch_end(self, *args):
        with torch.no_grad():
            for o, t in zip(self.online.parameters(), self.target.parameters()):
                t.lerp_(o, 0.04)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-4)


def neighbour_accuracy(net):
    net.eval()
    (a, ya), (b, yb) = series(300, 61), series(200, 62)
    with torch.no_grad():
        za, zb = F.normalize(net.online[0](a), dim=-1), F.normalize(net.online[0](b), dim=-1)
    return (ya[(zb @ za.t()).argmax(1)] == yb).float().mean().item()


L.seed_everything(6, verbose=False)
net = BYOL()
print(f"knn before {neighbour_accuracy(net):.3f}")
net.train()
loader = DataLoader(TensorDataset(series(1280, 60)[0]), batch_size=32, shuffle=True, drop_last=True)
trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(net, loader)
print(f"knn after {neighbour_accuracy(net):.3f}")
