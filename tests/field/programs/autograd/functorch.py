"""Per-sample gradients with vmap and grad, a Jacobian, and private SGD with noise: no backward pass is called."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, jacrev, vmap
from toy import DEVICE, VOCABULARY, batch, finish, seed

seed()
weights = {
    "embed": torch.randn(VOCABULARY, 16, device=DEVICE).requires_grad_(),
    "head": (0.3 * torch.randn(VOCABULARY, 16, device=DEVICE)).requires_grad_(),
}
optimizer = torch.optim.SGD(list(weights.values()), lr=0.1)


def loss_of_one(weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    hidden = F.embedding(tokens, weights["embed"]).mean(0)
    return F.cross_entropy(hidden @ weights["head"].T, targets[-1])


per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
for step in range(12):
    tokens, targets = batch()
    fixed = {name: weight.detach() for name, weight in weights.items()}
    slopes = per_sample(fixed, tokens, targets)
    total = 0.0
    for name, weight in weights.items():
        norms = slopes[name].flatten(1).norm(dim=1)
        factor = (1 / (norms + 1e-6)).clamp(max=1)[:, None, None]
        noise = 0.01 * torch.randn_like(weight)
        weight.grad = (slopes[name] * factor).mean(0) + noise
        total += norms.sum().item()
    optimizer.step()
    print(step, repr(total))
slope = jacrev(lambda x: F.softmax(x @ weights["head"].detach().T, dim=-1))(
    torch.ones(16, device=DEVICE)
)
print(tuple(slope.shape), repr(slope.norm().item()))
finish(weights, optimizer)
