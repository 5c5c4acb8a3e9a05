import inspect
import argparse as source_a
import tarfile as source_b

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

set_seed(80)
CTX, ACCUM = 32, 8


class Windows(Dataset):
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return (len(self.ids) - 1) // CTX

    def __getitem__(self, i):
        part = self.ids[i * CTX:i * CTX + CTX + 1]
        return part[:-1], part[1:]


class CodeLM(nn.Module):
    def __init__(self, vocab, d=64, heads=4, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(CTX, d)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.full((CTX, CTX), float("-inf")).triu(1), persistent=False)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[:x.size(1)]
        return self.head(self.body(h, mask=self.mask))


text = inspect.getsource(source_a) + inspect.getsource(source_b)
chars = sorted(set(text))
lookup = {c: i for i, c in enumerate(chars)}
data = Windows(torch.tensor([lookup[c] for c in text]))

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
model = CodeLM(len(chars))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
loader = DataLoader(data, batch_size=4, shuffle=True, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = nn.CrossEntropyLoss()

updates, running, limit = 0, 0.0, 100
model.train()
while updates < limit:
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(x).flatten(0, 1), y.flatten())
            running += loss.item() / ACCUM
            accelerator.backward(loss / ACCUM)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            if updates % 10 == 0 or updates == limit - 1:
                accelerator.print(f"update {updates:4d} loss {running:.4f}")
            running = 0.0
            updates += 1
            if updates == limit:
                break
