"""Sparse embeddings with SparseAdam beside dense weights with SGD: gradients that are not dense tensors."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from toy import DEVICE, finish, seed

warnings.simplefilter("ignore")
seed()
table = nn.Embedding(50, 8, sparse=True).to(DEVICE)
bag = nn.EmbeddingBag(50, 8, sparse=True, mode="sum").to(DEVICE)
head = nn.Linear(8, 50).to(DEVICE)
sparse = torch.optim.SparseAdam([*table.parameters(), *bag.parameters()], lr=1e-2)
dense = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(12):
    tokens = torch.randint(0, 50, (8,)).to(DEVICE)
    hidden = table(tokens) + bag(tokens.view(4, 2)).repeat(2, 1)
    loss = F.cross_entropy(head(hidden), (tokens + 1) % 50)
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    print(step, repr(loss.item()), table.weight.grad.layout, table.weight.grad._nnz())
finish(table, bag, head, sparse, dense)
