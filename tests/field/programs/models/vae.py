"""A variational autoencoder: noise drawn in the forward pass, a loss of two terms summed by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import DEVICE, finish, seed


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(20, 16)
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 20))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.encode(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        spread = torch.exp(0.5 * log_variance)
        return self.decode(mean + torch.randn_like(spread) * spread), mean, log_variance


seed()
model = VAE().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(15):
    pixels = (torch.rand(16, 20) > 0.5).float().to(DEVICE)
    logits, mean, log_variance = model(pixels)
    fit_loss = F.binary_cross_entropy_with_logits(logits, pixels, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    loss = fit_loss + divergence
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), repr(divergence.item()))
finish(model, optimizer)
