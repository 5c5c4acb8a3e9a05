import logging
import warnings
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(3)
V, T = 12, 24


class Chords(Dataset):

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        base = torch.randint(0, V, (n, 6), generator=g)
        shift = torch.tensor([0, 5, 7, 0])
        self.x = torch.cat([(base + s) % V for s in shift], 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i]


class Shared(L.LightningModule):
    def __init__(self, d=64, loops=3):
        super().__init__()
        self.automatic_optimization = False
        self.emb = nn.Embedding(V, d)
        nn.init.normal_(self.emb.weight, std=0.3)
        self.pos = nn.Parameter(torch.randn(T, d) * 0.3)
        self.block = nn.TransformerEncoderLayer(d, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.loops = loops
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(T - 1))

    def forward(self, x):
        h = self.emb(x) + self.pos[:x.size(1)]
        for _ in range(self.loops):
            h = checkpoint(self.block, h, self.mask, use_reentrant=False) if self.training else self.block(h, self.mask)
        return self.norm(h) @ self.emb.weight.t()

    def training_step(self, batch, i):
        opt, sch = self.optimizers(), self.lr_schedulers()
        loss = F.cross_entropy(self(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.manual_backward(loss / 2)
        if (i + 1) % 2 == 0:
            self.clip_gradients(opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            opt.step()
            opt.zero_grad()
            sch.step()
            if self.global_step % 30 == 0:
                print(f"update {self.global_step} loss {loss.item():.4f}")

    def validation_step(self, batch, i):
        out = self(batch[:, :-1]).argmax(-1)
        self.log("rep", (out[:, 6:] == batch[:, 7:]).float().mean(), on_epoch=True)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            print("accuracy on repeated part:", round(float(self.trainer.callback_metrics["rep"]), 3))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.01)
        return [opt], [torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=161, pct_start=0.15)]


trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Shared(), DataLoader(Chords(2560, 0), batch_size=16, shuffle=True), DataLoader(Chords(256, 1), batch_size=64))
