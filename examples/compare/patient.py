"""The model of trainer.c in PyTorch: the side that `traindoctor compare` trusts.

cc -O1 -std=c99 -o trainer trainer.c -lm && ./trainer dump
traindoctor compare patient.py:gpt dump
"""

import torch
import torch.nn.functional as F

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.model import Transformer, decay_groups

STEPS, BATCH, BLOCK, VOCAB = 3, 4, 16, 64


def loss_fn(model, batch):
    logits = model(batch["tokens"])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def gpt():
    """Sizes and settings are those of trainer.c. Weights and batches come from its dump, not from here."""
    torch.manual_seed(0)
    config = ModelConfig(
        layers=2,
        heads=4,
        width=32,
        block=BLOCK,
        norm="layer",
        positions="learned",
        mlp="gelu",
        tied=False,
        bias=True,
    )
    model = Transformer(config, VOCAB)
    rows = torch.randint(VOCAB, (STEPS, BATCH, BLOCK + 1))
    batches = [{"tokens": row[:, :-1], "targets": row[:, 1:]} for row in rows]
    optimizer = torch.optim.AdamW(
        decay_groups(model, weight_decay=0.1), lr=1e-3, betas=(0.9, 0.95), eps=1e-8
    )
    return model, batches, loss_fn, optimizer
