import torch
import lightning as L
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
L.seed_everything(17, verbose=False)

PAD, CLS = 0, 1


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            k = int(torch.randint(6, 20, (1,), generator=g))
            y = int(torch.randint(0, 4, (1,), generator=g))
            body = torch.randint(10, 80, (k,), generator=g)
            spots = torch.randperm(k, generator=g)[:3]
            body[spots] = 80 + 5 * y + torch.randint(0, 5, (3,), generator=g)
            self.items.append((torch.cat([torch.tensor([CLS]), body]), y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch, max_len=24):
    ids = torch.full((len(batch), max_len), PAD)
    mask = torch.zeros(len(batch), max_len, dtype=torch.long)
    for r, (s, _) in enumerate(batch):
        ids[r, : len(s)] = s
        mask[r, : len(s)] = 1
    return {"input_ids": ids, "attention_mask": mask, "label": torch.tensor([y for _, y in batch])}


class ReviewModel(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(100, width, padding_idx=PAD)
        self.where = nn.Embedding(24, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(width, 4)

    def forward(self, batch):
        ids = batch["input_ids"]
        h = self.embed(ids) + self.where.weight[: ids.size(1)]
        h = self.encoder(h, src_key_padding_mask=batch["attention_mask"].bool())
        return self.classify(h[:, 0])

    def training_step(self, batch, i):
        loss = nn.functional.cross_entropy(self(batch), batch["label"])
        if self.global_step % 20 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


loader = DataLoader(Reviews(1600, 1), batch_size=32, shuffle=True, collate_fn=collate)
trainer = L.Trainer(
    max_steps=150,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = ReviewModel()
trainer.fit(model, loader)
model.eval()
right = total = 0
with torch.no_grad():
    for b in DataLoader(Reviews(300, 2), batch_size=100, collate_fn=collate):
        right += (model(b).argmax(-1) == b["label"]).sum().item()
        total += len(b["label"])
print("held-out accuracy", round(right / total, 3))
