"""`simplefilter("error")` and debug logging, with complex weights: a warning of ours would end the script."""

from __future__ import annotations

import logging
import sys
import warnings

warnings.simplefilter("error")
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(message)s")

import torch  # noqa: E402
from toy import DEVICE, finish, fit, seed, tiny_model  # noqa: E402

warnings.simplefilter("error")
seed()
weight = torch.nn.Parameter(0.3 * torch.randn(8, 8, dtype=torch.cfloat, device=DEVICE))
optimizer = torch.optim.Adam([weight], lr=1e-2)
for step in range(10):
    signal = torch.randn(16, 8).to(DEVICE, torch.cfloat)
    loss = ((signal @ weight).abs() - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logging.info("step %d loss %r", step, loss.item())
model = tiny_model().to(torch.bfloat16)
fit(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=8)
print(warnings.filters[0][0], logging.getLogger().level, len(logging.getLogger().handlers))
finish(weight, model)
