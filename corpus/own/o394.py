import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")
L.seed_everything(17, verbose=False)


def make_pairs(n, seq=16, feat=12):
    g = torch.Generator().manual_seed(170)
    hidden = torch.randn(n, 6, generator=g)
    left = torch.einsum("nk,ktf->ntf", hidden, torch.randn(6, seq, feat, generator=g))
    right = torch.einsum("nk,ktf->ntf", hidden, torch.randn(6, seq, feat, generator=g))
    noise = lambda x: x + 0.5 * torch.randn(x.shape, generator=g)
    return noise(left), noise(right)


class Tower(nn.Module):
    def __init__(self, feat=12, d=48, seq=16):
        super().__init__()
        self.inp = nn.Linear(feat, d)
        self.pos = nn.Parameter(torch.randn(seq, d) * 0.02)
        self.enc = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, 32, bias=False)

    def forward(self, x):
        return F.normalize(self.out(self.enc(self.inp(x) + self.pos).mean(1)), dim=-1)


class TwoTower(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = Tower(), Tower()
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def training_step(self, batch, i):
        opt_a, opt_b = self.optimizers()
        za, zb = self.a(batch[0]), self.b(batch[1])
        sim = za @ zb.t() * self.log_scale.exp().clamp(max=100)
        y = torch.arange(len(sim))
        loss = 0.5 * (F.cross_entropy(sim, y) + F.cross_entropy(sim.t(), y))
        opt_a.zero_grad()
        opt_b.zero_grad()
        self.manual_backward(loss)
        opt_a.step()
        opt_b.step()
        for s in self.lr_schedulers():
            s.step()
        k = self.seen = getattr(self, "seen", -1) + 1
        if k % 15 == 0 or k == 179:
            hit = (sim.argmax(1) == y).float().mean().item()
            print(f"batch {k} loss {loss.item():.4f} top1 {hit:.2f} temp {self.log_scale.exp().item():.1f}")

    def configure_optimizers(self):
        opt_a = torch.optim.AdamW([*self.a.parameters(), self.log_scale], lr=1.5e-3, weight_decay=0.01)
        opt_b = torch.optim.SGD(self.b.parameters(), lr=0.05, momentum=0.9)
        sch = [torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 60, eta_min=1e-5) for o in (opt_a, opt_b)]
        return [opt_a, opt_b], sch


data = TensorDataset(*make_pairs(2880))
loader = DataLoader(data, batch_size=48, shuffle=True, drop_last=True)
trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(TwoTower(), loader)
