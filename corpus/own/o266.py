import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def pairs(n, seed, views=80, k=16):
    g = torch.Generator().manual_seed(seed)
    topic = torch.randint(views, (n,), generator=g)
    words = torch.randint(3, (n, 2, k), generator=g) + topic[:, None, None] * 3
    noise = torch.randint(views * 3, (n, 2, k), generator=g)
    keep = torch.rand(n, 2, k, generator=g) < 0.5
    out = torch.where(keep, words, noise)
    return TensorDataset(out[:, 0], out[:, 1])


class Tower(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.enc = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(d, 32)

    def forward(self, ids):
        return F.normalize(self.out(self.enc(self.emb(ids)).mean(1)), dim=-1)


class DualEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.query, self.document = Tower(240), Tower(240)
        self.log_scale = nn.Parameter(torch.tensor(2.0))
        self.seen = 0

    def configure_optimizers(self):
        towers = list(self.query.parameters()) + list(self.document.parameters())
        main = torch.optim.AdamW(towers, lr=2e-3)
        temp = torch.optim.Adam([self.log_scale], lr=1e-2)
        return [main, temp]

    def training_step(self, batch, batch_idx):
        main, temp = self.optimizers()
        q, d = self.query(batch[0]), self.document(batch[1])
        sim = q @ d.T * self.log_scale.exp().clamp(max=50)
        label = torch.arange(len(q))
        loss = (F.cross_entropy(sim, label) + F.cross_entropy(sim.T, label)) / 2
        temp.zero_grad()
        self.manual_backward(loss)
        main.step()
        temp.step()
        if self.seen % 20 == 0:
            hit = (sim.argmax(1) == label).float().mean().item()
            print(f"step {self.seen} loss {loss.item():.4f} in-batch acc {hit:.3f} scale {self.log_scale.exp().item():.1f}")
        self.seen += 1


if __name__ == "__main__":
    L.seed_everything(33, verbose=False)
    loader = DataLoader(pairs(2400, 330), batch_size=24, shuffle=True, drop_last=True)
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    model = DualEncoder()
    trainer.fit(model, loader)
    print("steps", model.seen)
