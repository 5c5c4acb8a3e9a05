"""No module and no optimizer: tensors in a dictionary, gradients from `autograd.grad`, moved as lists; some are replaced."""

from __future__ import annotations

import torch
from toy import VOCABULARY, batch, digest, loss_of, random_states, seed

if __name__ == "__main__":
    seed()
    tokens, _ = batch()
    shapes = {"table": (VOCABULARY, 16), "mix": (16, 16), "head": (16, VOCABULARY)}
    held = {
        k: (0.3 * torch.randn(s, device=tokens.device)).requires_grad_() for k, s in shapes.items()
    }
    means = [torch.zeros_like(p) for p in held.values()]
    for step in range(80):
        tokens, targets = batch()
        x = held["table"][tokens]
        loss = loss_of(torch.relu(x.cumsum(1) @ held["mix"]) @ held["head"], targets)
        gradients = torch.autograd.grad(loss, list(held.values()))
        with torch.no_grad():
            torch._foreach_lerp_(means, gradients, 0.1)
            torch._foreach_add_(list(held.values()), means, alpha=-0.1)
        if step == 60:
            held = {k: p.detach().clone().requires_grad_() for k, p in held.items()}
        print(step, repr(loss.item()), held["mix"]._version, tokens.sum().item())
    print(digest(held, means), random_states())
