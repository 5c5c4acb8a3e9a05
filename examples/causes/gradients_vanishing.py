"""Eight sigmoid layers stand between the embedding and the head."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
V, T, D = 32, 16, 32  # vocabulary, length, width
labels = torch.randint(4, (1024,))
rows = torch.randint(4, V, (1024, T))
rows[torch.arange(1024), torch.randint(T, (1024,))] = labels  # one token tells the class
loader = DataLoader(TensorDataset(rows, labels), batch_size=32, shuffle=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        layers = [layer for _ in range(8) for layer in (nn.Linear(D, D), nn.Sigmoid())]
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(D, 4)

    def forward(self, x):
        return self.head(self.blocks(self.tokens(x) + self.places.weight).mean(1))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(4):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
