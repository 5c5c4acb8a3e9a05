import logging, warnings
import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(15, verbose=False)
MOTIFS, SEG, SLOTS = 12, 8, 6


def windows(n):
    g = torch.Generator().manual_seed(15)
    motif = torch.randn(MOTIFS, SEG, generator=g).cumsum(1)
    motif = motif / motif.std(1, keepdim=True)
    idx = torch.randint(0, MOTIFS, (n, SLOTS), generator=g)
    x = motif[idx].reshape(n, 1, SLOTS * SEG)
    return x + 0.1 * torch.randn(x.shape, generator=g)


class EMAQuantizer(nn.Module):
    def __init__(self, k, d, decay=0.97):
        super().__init__()
        self.decay = decay
        self.register_buffer("code", torch.randn(k, d))
        self.register_buffer("size", torch.ones(k))
        self.register_buffer("total", self.code.clone())

    def forward(self, z):
        flat = z.detach().reshape(-1, z.size(-1))
        idx = torch.cdist(flat, self.code).argmin(1)
        q = self.code[idx].view_as(z)
        if self.training:
            hot = F.one_hot(idx, len(self.code)).float()
            self.size.lerp_(hot.sum(0), 1 - self.decay)
            self.total.lerp_(hot.T @ flat, 1 - self.decay)
            dead = self.size < 0.05
            if dead.any():
                pick = flat[torch.randint(0, len(flat), (int(dead.sum()),))]
                self.size[dead] = 1.0
                self.total[dead] = pick
            self.code.copy_(self.total / self.size[:, None].clamp_min(1e-3))
        return z + (q - z).detach(), F.mse_loss(z, q.detach()), idx


class VQ(L.LightningModule):
    def __init__(self, k=24, d=8):
        super().__init__()
        self.automatic_optimization = False
        self.enc = nn.Sequential(nn.Conv1d(1, 32, SEG, SEG), nn.ReLU(), nn.Conv1d(32, d, 1))
        self.vq = EMAQuantizer(k, d)
        self.dec = nn.Sequential(nn.Conv1d(d, 32, 1), nn.ReLU(), nn.ConvTranspose1d(32, 1, SEG, SEG))

    def forward(self, x):
        z = self.enc(x).transpose(1, 2)
        q, commit, idx = self.vq(z)
        return self.dec(q.transpose(1, 2)), commit, idx

    def training_step(self, batch, i):
        (x,) = batch
        y, commit, idx = self(x)
        rec = F.mse_loss(y, x)
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(rec + 0.25 * commit)
        opt.step()
        if self.global_step % 40 == 1:
            p = torch.bincount(idx, minlength=24).float()
            p = p / p.sum()
            print(f"step {self.global_step - 1:4d} rec {rec.item():.4f} commit {commit.item():.4f} "
                  f"perplexity {(-(p * (p + 1e-9).log()).sum()).exp().item():.1f}")

    def validation_step(self, batch, i):
        (x,) = batch
        self.log("val_rec", F.mse_loss(self(x)[0], x), on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


data = windows(4500)
train, val = TensorDataset(data[:4000]), TensorDataset(data[4000:])
model = VQ()
print(f"variance of the data {data.var():.3f}, noise floor 0.010")
trainer = L.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
trainer.fit(model, DataLoader(train, 64, shuffle=True), DataLoader(val, 250))
print(f"validation reconstruction {float(trainer.callback_metrics['val_rec']):.4f}")
