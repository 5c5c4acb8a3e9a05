"""A `collate_fn` with a life of its own: it sorts the loader's list, draws, counts, and is asked for its examples later."""

from __future__ import annotations

import random
import traceback
import weakref

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from toy import DEVICE, VOCABULARY, finish, loss_of, seed, tiny_model


class Row:
    """An example that somebody may hold."""

    def __init__(self, number: int) -> None:
        self.tokens = (torch.tensor(number) + 3 * torch.arange(13)) % VOCABULARY


class Join:
    def __init__(self) -> None:
        self.calls, self.seen = 0, weakref.WeakSet()

    def __call__(self, rows: list[Row]) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.seen.update(rows)
        rows.sort(key=lambda row: int(row.tokens[0]))
        random.shuffle(rows)
        if self.calls == 9:
            raise LookupError("no ninth batch")
        joined = torch.stack([row.tokens for row in rows])
        return joined[:, :-1], joined[:, 1:]


class Rows:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Row:
        return Row(index)


if __name__ == "__main__":
    seed()
    model, join = tiny_model(), Join()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    try:
        for tokens, targets in DataLoader(Rows(), batch_size=5, shuffle=True, collate_fn=join):
            loss = loss_of(model(tokens.to(DEVICE)), targets.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(join.calls, len(join.seen), repr(loss.item()))
    except LookupError as error:
        print(error, traceback.extract_tb(error.__traceback__)[-1].name)
    finish(model, optimizer)
