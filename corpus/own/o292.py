import collections
import logging
import re
import time
import warnings
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from pydoc_data.topics import topics

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
PATTERN = re.compile(r"\w+|[^\w\s]")


class TopicText(Dataset):
    def __init__(self, width=24, size=800):
        self.pages = [topics[k] for k in sorted(topics)]
        self.width = width
        counts = collections.Counter(w for p in self.pages for w in PATTERN.findall(p.lower()))
        self.vocab = [w for w, _ in counts.most_common(size - 1)]

    def encode(self, page):
        return [self.vocab.index(w) + 1 if w in self.vocab else 0 for w in PATTERN.findall(page.lower())]

    def __len__(self):
        return 720

    def __getitem__(self, i):
        ids = self.encode(self.pages[(i * 7) % len(self.pages)])
        while len(ids) < self.width + 1:
            ids = ids + ids
        a = int(torch.randint(len(ids) - self.width, (1,)))
        return torch.tensor(ids[a:a + self.width + 1])


class WordModel(L.LightningModule):
    def __init__(self, vocab, d=64, width=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(width, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, vocab)
        self.started = time.perf_counter()

    def forward(self, x):
        t = x.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        return self.out(self.body(self.emb(x) + self.pos[:t], mask=mask, is_causal=True))

    def training_step(self, batch, _):
        logits = self(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if self.global_step % 10 == 0 or self.global_step == 89:
            spent = time.perf_counter() - self.started
            print(f"step {self.global_step} loss {loss.item():.4f} elapsed {spent:.1f}s")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    L.seed_everything(3, verbose=False)
    data = TopicText()
    trainer = L.Trainer(max_steps=90, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(WordModel(800), DataLoader(data, batch_size=8, shuffle=True))
