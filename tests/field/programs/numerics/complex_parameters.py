"""Complex weights and Fourier transforms: norms, comparisons and casts of them warn or fail."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from toy import DEVICE, finish, seed


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(8, 8, dtype=torch.cfloat))
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x) @ self.weight).real + self.bias


seed()
model = Spectral().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(15):
    signal = torch.randn(16, 8).to(DEVICE)
    loss = (model(signal) - signal.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    print(step, repr(loss.item()), repr(norm.item()), model.weight.grad.dtype)
finish(model, optimizer)
