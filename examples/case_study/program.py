"""Field reports A, B and C as one program: a language model with a hand-written loss kernel.

    traindoctor run examples/case_study/program.py --variant kernel

Three reports of one program ended in three beliefs: "the gradients are wrong" (A), "the learning rate is too high"
(B), "it is the summation" (C). Each belief is a variant here, beside the sound program and the one that nobody
suspected: targets that are the inputs.
"""

from __future__ import annotations

import argparse
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VARIANTS = ("sound", "kernel", "targets", "rate", "plain-sum")
CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 24, 64, 4, 2, 16


class FusedCrossEntropy(torch.autograd.Function):
    """Mean negative log-likelihood with the backward pass written by hand, as a kernel's author does."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, divide: bool, kahan: bool) -> Tensor:
        shifted = logits - logits.max(-1, keepdim=True).values
        exponentials = shifted.exp()
        total = kahan_sum(exponentials) if kahan else exponentials.sum(-1, keepdim=True)
        probabilities = exponentials / total
        ctx.save_for_backward(probabilities, targets)
        ctx.divide = divide
        picked = shifted.gather(-1, targets[:, None]) - total.log()
        return -picked.mean()

    @staticmethod
    def backward(ctx, upstream: Tensor):
        probabilities, targets = ctx.saved_tensors
        gradient = probabilities.clone()
        gradient[torch.arange(len(targets)), targets] -= 1.0
        if ctx.divide:  # the mean's 1/N
            gradient /= len(targets)
        return gradient * upstream, None, None, None


def kahan_sum(values: Tensor) -> Tensor:
    """Compensated summation over the last axis: what report C believed to be the cure."""
    total = torch.zeros_like(values[..., :1])
    lost = torch.zeros_like(total)
    for column in range(values.shape[-1]):
        term = values[..., column : column + 1] - lost
        grown = total + term
        lost = (grown - total) - term
        total = grown
    return total


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def words(count: int) -> list[str]:
    """A little language of about fifty words."""
    pick = random.Random(5).choice
    who = "king queen knight miller widow bishop smith page".split()
    does = "sees greets fears serves mocks guards follows forgets".split()
    what = "castle river tower horse crown sword bridge market".split()
    how = "gladly often never slowly twice again today alone".split()
    text: list[str] = []
    while len(text) < count:
        text += ["the", pick(who), pick(does), "the", pick(what), pick(how), "."]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variant", choices=VARIANTS, default="sound")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    variant = options.variant
    torch.manual_seed(0)

    text = words(20_000)
    table = {word: number for number, word in enumerate(sorted(set(text)))}
    data = torch.tensor([table[word] for word in text])
    model = Model(len(table))
    rate = 0.08 if variant == "rate" else 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    shift = 0 if variant == "targets" else 1
    clipped = 0
    for step in range(options.steps):
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
        inputs = torch.stack([data[i : i + CONTEXT] for i in starts])
        targets = torch.stack([data[i + shift : i + shift + CONTEXT] for i in starts])
        logits = model(inputs).flatten(0, 1)
        loss = FusedCrossEntropy.apply(
            logits, targets.flatten(), variant != "kernel", variant != "plain-sum"
        )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        clipped += int(norm > 1.0)
        optimizer.step()
        if step % 15 == 0 or step == options.steps - 1:
            share = 100 * clipped / (step + 1)
            print(f"step {step:4d} loss {loss.item():.4f} norm {norm:.3g} clipped {share:.0f} %")


if __name__ == "__main__":
    main()
