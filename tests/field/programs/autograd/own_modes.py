"""The script's own TorchFunctionMode and TorchDispatchMode: they count every torch call, those of others too."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from toy import batch, finish, loss_of, seed, tiny_model

functions: collections.Counter[str] = collections.Counter()
operators: collections.Counter[str] = collections.Counter()


class CountFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        functions[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class CountOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operators[str(func)] += 1
        return func(*args, **(kwargs or {}))


seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(9):
    modes = [CountFunctions()] if step % 3 == 0 else [CountOperators()] if step % 3 == 1 else []
    for mode in modes:
        mode.__enter__()
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for mode in modes:
        mode.__exit__(None, None, None)
    print(step, repr(loss.item()), sum(functions.values()), sum(operators.values()))
print(sorted(functions.items()))
print(sorted(operators.items()))
finish(model, optimizer)
