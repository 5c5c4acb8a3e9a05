"""An encoder without positions has to reverse its input."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, T, D = 32, 16, 32  # vocabulary, length, width


def batch(rows=16):
    x = torch.randint(V, (rows, T))
    return x, x.flip(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        layer = nn.TransformerEncoderLayer(
            D, 4, 4 * D, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, V)

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x)))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    x, y = batch()
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, loss.item())
