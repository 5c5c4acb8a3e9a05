import logging
import warnings

import lightning as L
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import BertConfig, BertForTokenClassification

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Brackets(IterableDataset):
    def __init__(self, n, length=20, seed=9):
        self.n, self.length, self.seed = n, length, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n):
            x = torch.randint(5, 25, (self.length,), generator=g)
            flag = torch.randint(3, (1,), generator=g)
            x[0] = 2 + flag
            y = ((x - 5 + 7 * flag) % 20 < 6).long()
            y[0] = -100
            yield x, y


class Tagger(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = BertForTokenClassification(BertConfig(
            vocab_size=25, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
            max_position_embeddings=32, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

    def training_step(self, batch, idx):
        x, y = batch
        out = self.net(input_ids=x, labels=y)
        if self.global_step % 20 == 0:
            print(f"step {self.global_step} loss {out.loss.item():.4f}")
        return out.loss

    def on_before_optimizer_step(self, optimizer):
        if self.global_step % 60 == 0:
            total = torch.stack([p.grad.norm() for p in self.parameters() if p.grad is not None]).norm()
            print(f"step {self.global_step} grad norm {total.item():.3f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1.5e-3, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 40))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(70, verbose=False)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", gradient_clip_val=0.05, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Tagger(), DataLoader(Brackets(220 * 24), batch_size=24))
