"""In-place work in the graph, weights clamped through `.data`, evaluation in inference mode between steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from toy import batch, finish, loss_of, seed, tiny_model


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(1.1).relu_()


seed()
model, squash = tiny_model(), InPlace()
generator = torch.Generator().manual_seed(5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(15):
    tokens, targets = batch(generator=generator)
    hidden = model.norm(model.blocks[0](model.embed(tokens))) * 1.0
    squash(hidden)
    hidden = hidden.clone()
    hidden[:, 0] = 0
    hidden[..., 1].add_(0.1)
    loss = loss_of(model.head(hidden), targets)
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)
                parameter.data.clamp_(-3, 3)
    optimizer.step()
    print(step, repr(loss.item()))
    if step % 5 == 4:
        model.eval()
        with torch.inference_mode():
            tokens, targets = batch(generator=generator)
            value = loss_of(model(tokens), targets)
            print("validation", repr(value.item()), value.is_inference())
        model.train()
finish(model, optimizer, generator.get_state())
