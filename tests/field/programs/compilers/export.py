"""torch.export and symbolic tracing of a model in training: printed graphs must hold no function of ours."""

from __future__ import annotations

import torch
from torch import fx, nn
from toy import batch, finish, fit, seed, tiny_model

seed()
model = tiny_model(dropout=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=6)
tokens, targets = batch()


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = model
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.criterion(self.model(tokens).flatten(0, 1), targets.flatten())


exported = torch.export.export(WithLoss(), (tokens, targets))
print([str(node.target) for node in exported.graph.nodes if node.op == "call_function"])
print(repr(exported.module()(tokens, targets).item()))
traced = fx.symbolic_trace(nn.Sequential(model.norm, model.head, nn.Softmax(-1)))
print(traced.code)
fit(model, optimizer, steps=6)
finish(model, optimizer)
