"""Field report D: the printed cross-entropy stands at ln V, because the gradient is that of another loss.

    traindoctor run examples/case_study/report_d.py

The forward pass reports the cross-entropy of 10 000 words; the hand-written backward pass follows the squared
distance between the hidden state and the target's embedding. `--sound` differentiates what is printed.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, CONTEXT, BATCH = 10_000, 32, 16, 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embedding(tokens) + self.position
        return self.norm(self.layer(x, src_mask=mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sound", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    # Zipf's law, and each word followed by one of three: there is something to learn.
    weights = 1.0 / torch.arange(1, VOCABULARY + 1)
    follow = torch.multinomial(weights, 3 * VOCABULARY, replacement=True).view(VOCABULARY, 3)
    for step in range(options.steps):
        rows = [torch.multinomial(weights, BATCH, replacement=True)]
        for _ in range(CONTEXT):
            rows.append(follow[rows[-1], torch.randint(3, (BATCH,))])
        text = torch.stack(rows, 1)
        inputs, targets = text[:, :-1], text[:, 1:]
        hidden = model.hidden(inputs)
        loss = F.cross_entropy(model.output(hidden).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        if options.sound:
            loss.backward()
        else:
            (hidden - model.embedding(targets)).pow(2).mean().backward()
        optimizer.step()
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step:4d} cross-entropy {loss.item():.4f}")


if __name__ == "__main__":
    main()
