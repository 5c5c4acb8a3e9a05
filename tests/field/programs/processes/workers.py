"""DataLoader workers of every start method, persistent, with random transforms: they must not be watched."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from toy import DEVICE, VOCABULARY, finish, loss_of, seed, tiny_model


class Rows(Dataset):
    """Every item goes through torch functions that a watcher may have replaced."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = torch.randint(0, VOCABULARY, (1,))
        row = (start + 3 * torch.arange(13)) % VOCABULARY
        noise = F.softmax(F.dropout(torch.randn(4), 0.1), dim=0)
        F.cross_entropy(noise[None], torch.tensor([index % 4]))
        return row[:-1], row[1:]


if __name__ == "__main__":
    seed()
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Rows(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=sys.argv[1],
        persistent_workers=True,
        pin_memory=DEVICE.type == "cuda",
    )
    for epoch in range(2):
        for step, (tokens, targets) in enumerate(loader):
            loss = loss_of(model(tokens.to(DEVICE)), targets.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, step, repr(loss.item()))
    finish(model, optimizer)
