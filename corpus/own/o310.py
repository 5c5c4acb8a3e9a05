import functools
import random

import torch
from torch import nn
from accelerate import Accelerator
from pydoc_data.topics import topics

MASK, PAD, START = 0, 1, 2
LENGTH, BATCH, HEADS = 96, 16, 4


class SpanBias(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.register_buffer("slope", 2.0 ** -torch.arange(1, heads + 1).float())

    @functools.lru_cache(maxsize=None)
    def forward(self, lengths):
        at = torch.arange(LENGTH)
        far = -(at[:, None] - at[None]).abs() * self.slope[:, None, None]
        gone = at[None] >= lengths[:, None]
        bias = far[None].masked_fill(gone[:, None, None, :], -1e4)
        return bias.reshape(-1, LENGTH, LENGTH)


class MaskedModel(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(LENGTH, d)
        self.bias = SpanBias(HEADS)
        layer = nn.TransformerEncoderLayer(d, HEADS, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, ids, lengths):
        x = self.tok(ids) + self.pos.weight
        return self.out(self.norm(self.layers(x, mask=self.bias(lengths))))


def rows(table):
    pieces = [" ".join(p.split()) for v in topics.values() for p in v.split("\n\n")]
    pieces = [p[:LENGTH] for p in pieces if len(p) > 30]
    while True:
        part = random.sample(pieces, BATCH)
        ids = torch.full((BATCH, LENGTH), PAD)
        for i, p in enumerate(part):
            ids[i, : len(p)] = torch.tensor([table[c] for c in p])
        lengths = torch.tensor([len(p) for p in part])
        hide = (torch.rand(BATCH, LENGTH) < 0.12) & (ids != PAD)
        yield ids.masked_fill(hide, MASK), ids.masked_fill(ids == PAD, -100), lengths


def main():
    random.seed(10)
    torch.manual_seed(10)
    accelerator = Accelerator(cpu=True)
    symbols = sorted(set("".join(topics.values())))
    table = {c: i + START for i, c in enumerate(symbols)}
    model = MaskedModel(len(symbols) + START)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    data = rows(table)
    for step in range(140):
        ids, labels, lengths = next(data)
        logits = model(ids, lengths)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == 139:
            accelerator.print(f"step {step} loss {loss.item():.4f}")


main()
