import random
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
random.seed(0)
device = "cuda"
text = "\n".join(topics[key] for key in sorted(topics))
letters = sorted(set(text))
code = {letter: number for number, letter in enumerate(letters)}
BLOCK, BATCH, WIDTH = 256, 64, 192


def make_batch():
    rows = []
    for _ in range(BATCH):
        start = random.randrange(len(text) - BLOCK - 1)
        rows.append([code[letter] for letter in text[start : start + BLOCK + 1]])
    return torch.tensor(rows)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(letters))
        self.register_buffer("mask", torch.full((BLOCK, BLOCK), float("-inf")).triu(1))

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.size(1)]
        return self.head(self.body(x, mask=self.mask, is_causal=True))


model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
mean = 0.0
batch = make_batch()
for step in range(300):
    ids = batch.to(device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = 0.95 * mean + 0.05 * loss.item()
    batch = make_batch()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f} mean {mean:.4f}")
