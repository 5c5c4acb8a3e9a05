"""torch.compile with graph breaks: counts of frames, graphs and breaks tell whether dynamo saw code of ours."""

from __future__ import annotations

import sys
import warnings

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from toy import DEVICE, LENGTH, VOCABULARY, batch, finish, loss_of, seed, tiny_model

backend = sys.argv[1]
warnings.simplefilter("ignore")


class Breaking(nn.Module):
    """Prints in the middle and looks at a value: two breaks a call."""

    def __init__(self) -> None:
        super().__init__()
        self.core = tiny_model(dropout=0.0)
        self.scale = nn.Parameter(torch.ones(VOCABULARY, device=DEVICE))

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.core(tokens)
        print("middle", tuple(logits.shape))
        if logits.mean().item() > 100:
            logits = logits / 2
        return logits * self.scale


@torch.compile(backend=backend)
def compiled_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return loss_of(logits, targets)


seed()
model = Breaking()
compiled = torch.compile(model, backend=backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(12):
    tokens, targets = batch(size=4 if step < 8 else 6)  # another shape: compiled again
    loss = compiled_loss(compiled(tokens[:, :LENGTH]), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
print({name: dict(counters[name]) for name in ("frames", "stats")})
print(sorted((key.splitlines()[0], count) for key, count in counters["graph_break"].items()))
finish(model, optimizer)
