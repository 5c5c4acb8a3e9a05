"""Workers forked after the first step, as for a test set: what was armed by then must be off in the child."""

from __future__ import annotations

import multiprocessing
import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
from toy import DEVICE, finish, seed


def normalise(pixels: Tensor) -> Tensor:
    return F.layer_norm(pixels, pixels.shape).sub_(pixels.mean()).div_(pixels.std() + 1e-6)


class Pictures(Dataset):
    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        assert get_worker_info() is not None
        return normalise(torch.rand(1, 6, 6)), index % 3


seed()
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).to(DEVICE)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
for epoch in range(2):
    model.train()
    for step, (pixels, labels) in enumerate(DataLoader(Pictures(24), 8, True, num_workers=1)):
        loss = F.nll_loss(F.log_softmax(model(pixels.to(DEVICE)), dim=1), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, step, repr(loss.item()))
    model.eval()
    with torch.no_grad():
        loader = DataLoader(Pictures(12), 4, num_workers=2, worker_init_fn=lambda _: os.getpid())
        for pixels, labels in loader:
            value = F.cross_entropy(model(pixels.to(DEVICE)), labels.to(DEVICE), reduction="sum")
            print("test", repr(value.item()))
print(multiprocessing.active_children())
finish(model, optimizer)
