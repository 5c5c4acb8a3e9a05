"""A plain training loop. One line is missing."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, T, D = 32, 16, 32  # vocabulary, length, width
text = torch.randint(1, 5, (20000,)).cumsum(0) % V


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.block = nn.TransformerEncoderLayer(D, 4, 4 * D, dropout=0.0, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.tokens(x) + self.places.weight
        return self.head(self.block(h, src_mask=mask, is_causal=True))


def train(model, optimizer, steps=100):
    for step in range(steps):
        ids = text[torch.randint(len(text) - T, (16, 1)) + torch.arange(T + 1)]
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    model = Model()
    train(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
