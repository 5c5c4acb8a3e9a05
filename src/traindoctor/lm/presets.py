"""Sizes that are known to train well, by name."""

from typing import Any

# name -> (one line for --help, settings). Sizes in the comments are parameters with a character vocabulary.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny": (
        "2 layers x 64, for trials in seconds",
        {
            "layers": 2,
            "heads": 2,
            "width": 64,
            "block": 64,
            "steps": 500,
            "lr": 4e-3,
            "eval_every": 100,
        },
    ),
    "small": ("4 layers x 128, minutes on a laptop (the default)", {}),
    "demo": (
        "4 layers x 128 on the embedded text, under 4 minutes on 2 CPU cores",
        {
            "steps": 600,
            "batch": 8,
            "lr": 4e-3,
            "warmup": 60,
            "eval_every": 100,
            "eval_blocks": 48,
            "sample_tokens": 240,
        },
    ),
    "base": (
        "6 layers x 384, an hour on a laptop, minutes on a GPU",
        {
            "layers": 6,
            "heads": 6,
            "width": 384,
            "block": 256,
            "batch": 64,
            "steps": 5000,
            "lr": 1e-3,
            "dropout": 0.1,
        },
    ),
    "gpt2": (
        "the shape of GPT-2 124M with a trained bpe vocabulary; for a GPU",
        {
            "layers": 12,
            "heads": 12,
            "width": 768,
            "block": 1024,
            "norm": "layer",
            "positions": "learned",
            "mlp": "gelu-tanh",
            "bias": True,
            "tokenizer": "bpe",
            "vocab_size": 32768,
            "batch": 32,
            "accumulation": 4,
            "steps": 20000,
            "lr": 6e-4,
            "warmup": 1000,
            "compile": True,
        },
    ),
    "llama": (
        "16 layers x 1024, rotary, SwiGLU, grouped-query attention; for a GPU",
        {
            "layers": 16,
            "heads": 16,
            "kv_heads": 4,
            "width": 1024,
            "block": 2048,
            "tokenizer": "bpe",
            "vocab_size": 32768,
            "batch": 16,
            "accumulation": 8,
            "steps": 20000,
            "lr": 6e-4,
            "warmup": 1000,
            "compile": True,
        },
    ),
}
