"""Trains one architecture of `transformers`, tiny and untrained, on a toy language. Prints every loss, bit for bit.

    python benchmarks/zoo/train_one.py llama --family causal --steps 60

An ordinary training script: it knows nothing of traindoctor. The last line is a checksum of the weights.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import shrink
import torch
import transformers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

FAMILIES = {
    "causal": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "masked": "AutoModelForMaskedLM",
    "vision": "AutoModelForImageClassification",
}
ROWS, LENGTH = 8, 32
# The first numbers are left to padding and the like, the last one is the mask.
FIRST, MASK = 3, shrink.VOCAB - 1
CLASSES = 4
NOISE = 0.1
MOST_PARAMETERS = 20_000_000
CANNOT_BE_BUILT = 3


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("architecture")
    arguments.add_argument("--family", choices=FAMILIES, default="causal")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--steps", type=int, default=60)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if options.device != "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
    generator = torch.Generator().manual_seed(1)
    try:
        model = build(options.architecture, options.family).to(options.device)
    except Unbuildable as reason:
        print(f"cannot be built: {reason}", file=sys.stderr)
        sys.exit(CANNOT_BE_BUILT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(options.steps):
        batch = BATCHES[options.family](model, generator)
        loss = model(**{name: value.to(options.device) for name, value in batch.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(float(loss.detach()).hex())
    checksum = 0
    for parameter in model.parameters():
        raw = parameter.detach().cpu().contiguous().view(torch.uint8)
        checksum = zlib.crc32(raw.numpy().tobytes(), checksum)
    print(f"weights {checksum:08x}")


class Unbuildable(Exception):
    """No tiny twin of this architecture, and why."""


def build(name: str, family: str) -> torch.nn.Module:
    """The first tiny twin that can make a step: sizes that a configuration leaves open are given if they must be."""
    reasons = []
    for fill in (False, True):
        try:
            torch.manual_seed(0)
            model = make(name, family, fill)
            model.train()
            model(**BATCHES[family](model, torch.Generator().manual_seed(0))).loss.backward()
            model.zero_grad()
            torch.manual_seed(0)
            return model
        except Exception as error:
            line = str(error).strip().splitlines() or [""]
            reasons.append(f"{type(error).__name__}: {line[0]}")
    raise Unbuildable(reasons[0])


def make(name: str, family: str, fill: bool) -> torch.nn.Module:
    config = shrink.tiny(CONFIG_MAPPING[name], name if family == "causal" else "", fill=fill)
    if family == "vision":
        config.num_labels = CLASSES
    if family == "seq2seq" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # T5's family leaves it to generation
    auto = getattr(transformers, FAMILIES[family])
    model_class = auto._model_mapping[type(config)]
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    wanted = getattr(model_class, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):  # a part of a larger model
        config = next(part for part in vars(config).values() if isinstance(part, wanted))
    with torch.device("meta"):
        num_parameters = sum(p.numel() for p in model_class._from_config(config).parameters())
    if num_parameters > MOST_PARAMETERS:
        raise ValueError(
            f"{num_parameters / 1e6:.0f} million parameters, and no field that says so"
        )
    return model_class._from_config(config)


def text(generator: torch.Generator) -> Tensor:
    """Each token follows from the one before it, but for some noise. (B, T)"""
    tokens = MASK - FIRST
    column = torch.randint(0, tokens, (ROWS,), generator=generator)
    columns = [column]
    for _ in range(LENGTH - 1):
        drawn = torch.randint(0, tokens, (ROWS,), generator=generator)
        noisy = torch.rand(ROWS, generator=generator) < NOISE
        column = torch.where(noisy, drawn, (5 * column + 7) % tokens)
        columns.append(column)
    return torch.stack(columns, dim=1) + FIRST


def causal_batch(model: torch.nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """`labels=input_ids`, as the documentation has it: the model shifts them (those of Bart's family do not)."""
    tokens = text(generator)
    return {"input_ids": tokens, "labels": tokens}


def seq2seq_batch(model: torch.nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    tokens = text(generator)
    return {"input_ids": tokens, "labels": tokens.flip(1)}


def masked_batch(model: torch.nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    tokens = text(generator)
    hidden = torch.rand(tokens.shape, generator=generator) < 0.15
    hidden[:, 0] = True
    return {
        "input_ids": tokens.masked_fill(hidden, MASK),
        "labels": tokens.masked_fill(~hidden, -100),
    }


def vision_batch(model: torch.nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """The class says which corner is bright."""
    config = model.config
    side = getattr(config, "image_size", 32)
    side = side if isinstance(side, int) else side[0]
    channels = getattr(config, "num_channels", 3)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    pixels = torch.randn(ROWS, channels, side, side, generator=generator)
    for row, label in enumerate(labels.tolist()):
        top, left = label // 2 * (side // 2), label % 2 * (side // 2)
        pixels[row, :, top : top + side // 2, left : left + side // 2] += 1.0
    return {"pixel_values": pixels, "labels": labels}


BATCHES = {
    "causal": causal_batch,
    "seq2seq": seq2seq_batch,
    "masked": masked_batch,
    "vision": vision_batch,
}

if __name__ == "__main__":
    main()
