"""Pinned memory and workers forked after CUDA was used, a new set each epoch: a CUDA call in them aborts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from toy import DEVICE, VOCABULARY, finish, loss_of, seed, tiny_model


class Rows(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = (torch.tensor([index]) + 3 * torch.arange(13)) % VOCABULARY
        F.softmax(
            F.layer_norm(torch.randn(4), (4,)), dim=0
        )  # functions that a watcher may have replaced
        return row[:-1], row[1:]


seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for epoch in range(3):
    loader = DataLoader(Rows(), 8, shuffle=True, num_workers=2, pin_memory=True)
    for tokens, targets in loader:
        moved = tokens.to(DEVICE, non_blocking=True), targets.to(DEVICE, non_blocking=True)
        loss = loss_of(model(moved[0]), moved[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, repr(loss.item()), tokens.is_pinned())
finish(model, optimizer)
