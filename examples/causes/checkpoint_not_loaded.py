"""A checkpoint of a wrapped model is loaded with `strict=False`: no name matches, and nothing says so."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, T, D = 32, 16, 32  # vocabulary, length, width
text = torch.randint(1, 5, (20000,)).cumsum(0) % V  # 1 to 4 above the token before


def batch(rows=16):
    ids = text[torch.randint(len(text) - T, (rows, 1)) + torch.arange(T + 1)]
    return ids[:, :-1], ids[:, 1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        layer = nn.TransformerEncoderLayer(
            D, 4, 4 * D, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, V)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.tokens(x) + self.places.weight
        return self.head(self.blocks(h, mask=mask, is_causal=True))


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        x, y = batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, loss.item())


pretrained = nn.DataParallel(Model())
train(pretrained, 60)
torch.save(pretrained.state_dict(), "pretrained.pt")

model = Model()
model.load_state_dict(torch.load("pretrained.pt"), strict=False)
train(model, 60)
