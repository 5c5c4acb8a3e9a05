"""A 0/1 float mask for nn.MultiheadAttention: it is added to the scores, so nothing is masked.

The attention of pytorch/examples' minGPT-ddp, rebuilt in a few lines. `python float_mask.py bool` has the fix.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
V, T, D = 32, 16, 32  # vocabulary, length, width
text = torch.randint(1, 5, (20000,)).cumsum(0) % V
mask = torch.tril(torch.ones(T, T))  # 1 where a place may look, 0 where it may not
if "bool" in sys.argv:
    mask = mask == 0  # True where a place may not look


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attention = nn.MultiheadAttention(D, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, x):
        h = self.tokens(x) + self.places.weight
        h = h + self.attention(h, h, h, attn_mask=mask)[0]
        return self.head(self.norm(h))


def moved_by_the_last_token(model):
    """How far the scores before the last place move when the last token is changed."""
    x = text[:T].unsqueeze(0)
    y = x.clone()
    y[0, -1] = (y[0, -1] + 1) % V
    with torch.no_grad():
        return (model(x) - model(y))[0, :-1].abs().max().item()


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
print("earlier scores move by", moved_by_the_last_token(model))
for step in range(200):
    ids = text[torch.randint(len(text) - T, (16, 1)) + torch.arange(T + 1)]
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 39:
        print(step, loss.item())
