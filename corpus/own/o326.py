import logging
import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from pydoc_data.topics import topics

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
BPTT, ROWS = 35, 20


def letters():
    text = " ".join(topics[k] for k in sorted(topics)).lower()
    text = " ".join("".join(c if c.isalpha() and c.isascii() else " " for c in text).split())
    table = {c: i for i, c in enumerate(" abcdefghijklmnopqrstuvwxyz")}
    return torch.tensor([table[c] for c in text[:200000]]), len(table)


class Segments(torch.utils.data.Dataset):
    def __init__(self, ids):
        n = len(ids) // ROWS
        self.grid = ids[: n * ROWS].view(ROWS, n).t().contiguous()

    def __len__(self):
        return (self.grid.size(0) - 1) // BPTT

    def __getitem__(self, i):
        a = i * BPTT
        return self.grid[a:a + BPTT], self.grid[a + 1:a + 1 + BPTT]


class LetterModel(L.LightningModule):
    def __init__(self, vocab, emb=64, hidden=96, lr=20.0, clip=0.25):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(vocab, emb)
        self.rnn = nn.LSTM(emb, hidden, num_layers=1)
        self.decode = nn.Linear(hidden, vocab)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        nn.init.uniform_(self.decode.weight, -0.1, 0.1)
        nn.init.zeros_(self.decode.bias)
        self.state = None
        self.count = 0

    def training_step(self, batch, _):
        x, y = batch
        if self.state is not None:
            self.state = tuple(s.detach() for s in self.state)
        out, self.state = self.rnn(self.embed(x), self.state)
        loss = F.cross_entropy(self.decode(out).flatten(0, 1), y.flatten())
        nn.utils.clip_grad_norm_(self.parameters(), self.hparams.clip)
        if self.count % 20 == 0:
            print(f"batch {self.count} loss {loss.item():.3f} ppl {loss.clamp(max=20).exp().item():.1f}")
        self.count += 1
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(17, verbose=False)
    ids, vocab = letters()
    data = torch.utils.data.DataLoader(Segments(ids), batch_size=None, shuffle=False)
    model = LetterModel(vocab)
    trainer = L.Trainer(max_steps=161, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, data)
