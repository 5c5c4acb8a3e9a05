"""torch.jit.trace in the middle of training, then training of the trace: the tracer records what anyone calls."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from toy import DEVICE, VOCABULARY, batch, finish, fit, seed

warnings.simplefilter("ignore")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.embed(tokens))))


seed()
model = Small().to(DEVICE)
fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), steps=6)
traced = torch.jit.trace(model, batch()[0])
optimizer = torch.optim.Adam(traced.parameters(), lr=1e-2)
fit(traced, optimizer, steps=8, word="traced")
print(traced.graph.str(False) if hasattr(traced.graph, "str") else len(str(traced.graph)))
print(sorted({node.kind() for node in traced.inlined_graph.nodes()}))
finish(traced, optimizer)
