"""A graph attention network on one full graph: a batch that never changes, masks instead of batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import DEVICE, finish, seed


class GraphAttention(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.project = nn.Linear(width_in, width_out, bias=False)
        self.score = nn.Parameter(torch.randn(2 * width_out) * 0.3)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        hidden = self.project(F.dropout(x, 0.3, self.training))
        left, right = self.score.chunk(2)
        scores = F.leaky_relu((hidden @ left)[:, None] + (hidden @ right)[None, :], 0.2)
        weights = scores.masked_fill(~neighbours, -9e15).softmax(-1)
        return F.dropout(weights, 0.3, self.training) @ hidden


seed()
num_nodes = 40
neighbours = (torch.rand(num_nodes, num_nodes) < 0.1) | torch.eye(num_nodes, dtype=torch.bool)
neighbours = neighbours.to(DEVICE)
features = torch.randn(num_nodes, 12).to(DEVICE)
labels = features[:, :4].argmax(1)
known = torch.arange(num_nodes) < 25
first, second = GraphAttention(12, 16).to(DEVICE), GraphAttention(16, 4).to(DEVICE)
network = nn.ModuleList([first, second])
optimizer = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=5e-4)
for epoch in range(15):
    network.train()
    logits = second(F.elu(first(features, neighbours)), neighbours).log_softmax(1)
    loss = F.nll_loss(logits[known], labels[known])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    network.eval()
    with torch.no_grad():
        guess = second(F.elu(first(features, neighbours)), neighbours).argmax(1)
        right = (guess == labels)[~known].float().mean()
    print(epoch, repr(loss.item()), repr(right.item()))
finish(network, optimizer)
