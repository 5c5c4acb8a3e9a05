"""All pairs: those that are equal, and those with one fault and where it shows first.

A side is `file:function` of this folder. tests/compare/test_pairs.py and benchmarks/compare_pairs.py read this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

First = tuple[str, int, str]


@dataclass(frozen=True)
class Pair:
    """Two sides, and what a comparison must say of them."""

    name: str
    a: str
    b: str
    first: First | None = None
    """Kind, step and name of the first tensor that differs; None: the sides are equal."""
    kind: str = ""
    """The code of the kind of difference; empty where no code is asked for."""
    fast: bool = False
    """In every run of the tests, not only in the slow ones."""
    device: Literal["any", "cpu", "cuda"] = "any"


def equal(
    name: str,
    a: str,
    b: str,
    *,
    fast: bool = False,
    device: Literal["any", "cpu", "cuda"] = "any",
) -> Pair:
    return Pair(name, a, b, fast=fast, device=device)


def fault(name: str, a: str, b: str, first: First, kind: str = "", *, fast: bool = False) -> Pair:
    return Pair(name, f"faults:{a}", f"faults:{b}", first, kind, fast)


EQUAL = (
    equal("SDPA | by hand", "attention:sdpa", "attention:hand", fast=True),
    equal("SDPA | online softmax", "attention:sdpa", "attention:online"),
    equal("SDPA math | flash", "attention:math_backend", "attention:flash_backend", device="cpu"),
    equal("fused qkv | three layers", "attention:sdpa", "attention:apart"),
    equal("rotary from 0 | from 16", "attention:rotary", "attention:rotary_later"),
    equal("rotary | complex numbers", "attention:rotary", "attention:rotary_complex"),
    equal("bf16 SDPA | by hand", "attention:bf16", "attention:bf16_hand"),
    equal("bf16 SDPA | einsum", "attention:bf16", "attention:bf16_einsum", fast=True),
    equal("bf16 math | flash", "attention:bf16_math", "attention:bf16_flash"),
    equal(
        "bf16 math | efficient", "attention:bf16_math", "attention:bf16_efficient", device="cuda"
    ),
    equal("bf16 math | cudnn", "attention:bf16_math", "attention:bf16_cudnn", device="cuda"),
    equal("autocast SDPA | einsum", "attention:autocast_sdpa", "attention:autocast_einsum"),
    equal("float64 | float32", "precision:float64", "precision:float32"),
    equal("float32 | TF32", "precision:float32", "precision:tf32", device="cuda"),
    equal("float32 | autocast", "precision:float32", "precision:bf16_autocast", fast=True),
    equal("float32 | bf16 weights", "precision:float32", "precision:bf16_weights"),
    equal("cross entropy | kernel", "losses:plain", "losses:kernel"),
    equal("cross entropy | with its linear layer", "losses:plain", "losses:fused"),
    equal("cross entropy | by hand", "losses:plain", "losses:by_hand"),
    equal("batch | micro-batches", "losses:plain", "losses:accumulated"),
    equal("dictionary | pair", "losses:plain", "losses:pairs"),
    equal("smoothed targets | by hand", "losses:smoothed", "losses:smoothed_by_hand"),
    equal("LayerNorm | by hand", "layers:plain", "layers:layer_norm"),
    equal("RMSNorm | by hand", "layers:torch_rms_norm", "layers:rms_norm"),
    equal("autograd | own backward passes", "layers:plain", "layers:functions", fast=True),
    equal("bf16 LayerNorm | by hand", "layers:bf16", "layers:bf16_layer_norm"),
    equal("bf16 autograd | own backward passes", "layers:bf16", "layers:bf16_functions"),
    equal("bf16 loss in float32 | bf16", "losses:bf16", "losses:bf16_throughout"),
    equal("Linear | Conv1D", "layers:plain", "layers:conv1d"),
    equal("stored | checkpointed", "layers:plain", "layers:checkpointed"),
    equal("embedding | one-hot product", "layers:plain", "layers:one_hot"),
    equal("by hand | TransformerEncoderLayer", "layers:plain", "layers:encoder"),
    equal("eager | compiled", "layers:plain", "layers:compiled"),
    equal("autocast eager | compiled", "precision:bf16_autocast", "precision:compiled_autocast"),
    equal("AdamW loop | foreach", "steps:loop", "steps:foreach"),
    equal("AdamW loop | fused", "steps:loop", "steps:fused"),
    equal("AdamW | by hand", "steps:loop", "steps:hand", fast=True),
    equal("SGD momentum | by hand", "steps:momentum", "steps:momentum_by_hand"),
    equal("LSTM | unrolled", "others:lstm", "others:unrolled", fast=True),
    equal("convolution | unfold", "others:convolution", "others:unfolded"),
    equal("convolution | channels last", "others:convolution", "others:channels_last"),
    equal("GPT-2 | ours", "libraries:gpt2", "libraries:our_gpt2"),
    equal("Llama | ours", "libraries:llama", "libraries:our_llama"),
    equal("tied Llama | ours", "libraries:tied_llama", "libraries:our_tied_llama"),
)

MIXED: First = ("activation", 0, "blocks.1.out.input")
FAULTS = (
    # float32
    fault(
        "epsilon 1e-3 in one norm",
        "sound",
        "norm_epsilon",
        ("activation", 0, "blocks.1.norm1"),
        "epsilon",
        fast=True,
    ),
    fault(
        "GELU of tanh in one layer",
        "sound",
        "gelu_tanh",
        ("activation", 0, "blocks.1.down.input"),
        "activation",
    ),
    fault(
        "residual behind the norm",
        "sound",
        "after_norm",
        ("activation", 0, "blocks.1.norm2.input"),
        "another",
    ),
    fault(
        "residual twice",
        "sound",
        "doubled",
        ("activation", 0, "blocks.1.norm2.input"),
        "added-term",
    ),
    fault("rotary pairs are neighbours", "sound_rotary", "rotary_pairs", MIXED, "rotary"),
    fault("rotary base 500000", "sound_rotary", "rotary_base", MIXED, "rotary"),
    fault("values are turned too", "sound_rotary", "rotary_values", MIXED),
    fault(
        "key groups in the wrong order", "sound_grouped", "groups_interleaved", MIXED, "permutation"
    ),
    fault("no place sees itself", "sound", "strict", MIXED, "mask"),
    fault("last place left out of the loss", "sound", "last_left_out", ("loss", 0, "loss"), "rows"),
    fault(
        "norm backward without its mean",
        "sound_norm",
        "no_mean_term",
        ("gradient", 0, "blocks.1.norm2.input"),
        "missing-term",
        fast=True,
    ),
    fault(
        "last row missing in a norm's scale",
        "sound_norm",
        "row_missing",
        ("gradient", 0, "blocks.1.norm2.weight"),
        "rows",
    ),
    fault(
        "backward of the other GELU",
        "sound_gelu",
        "gelu_backward",
        ("gradient", 0, "blocks.1.up"),
        "activation",
    ),
    fault(
        "attention backward without scale",
        "sound_attention",
        "scale_forgotten",
        ("gradient", 0, "blocks.1.qkv"),
        "scale",
    ),
    fault(
        "feed-forward part detached",
        "sound",
        "detached",
        ("gradient", 0, "blocks.1.down.input"),
        "zero",
    ),
    fault(
        "decay on norms and biases",
        "sound_groups",
        "decayed_everywhere",
        ("update", 0, "blocks.0.norm1.weight"),
        "decay",
    ),
    fault(
        "no decay",
        "sound_groups",
        "decay_missing",
        ("update", 0, "embedding.weight"),
        "decay",
        fast=True,
    ),
    fault("Adam for AdamW", "sound", "coupled_decay", ("update", 0, "embedding.weight"), "decay"),
    fault("betas swapped", "sound", "betas_swapped", ("update", 1, "embedding.weight"), "betas"),
    fault(
        "no momentum",
        "sound_momentum",
        "no_momentum",
        ("update", 1, "embedding.weight"),
        "momentum",
    ),
    fault(
        "twice the rate in one group",
        "sound_groups",
        "rate_doubled",
        ("update", 0, "blocks.0.norm1.weight"),
        "factor",
    ),
    fault(
        "one weight left out",
        "sound",
        "left_out",
        ("update", 0, "blocks.1.up.weight"),
        "zero",
        fast=True,
    ),
    fault(
        "clipped in one only",
        "sound_momentum",
        "clipped",
        ("update", 0, "embedding.weight"),
        "factor",
    ),
    fault(
        "gradients of vectors kept",
        "sound",
        "vectors_kept",
        ("gradient", 1, "norm.bias"),
        "added-term",
    ),
    # bfloat16
    fault(
        "variance over n - 1, autocast",
        "sound_autocast",
        "norm_variance_autocast",
        ("activation", 0, "blocks.1.norm1"),
        "variance",
    ),
    fault("no scale, autocast", "sound_autocast", "unscaled_autocast", MIXED, "scale", fast=True),
    fault("next token seen, bf16", "sound_bf16", "next_seen_bf16", MIXED, "mask"),
    fault(
        "softmax over queries, autocast", "sound_autocast", "over_queries_autocast", MIXED, "axis"
    ),
    fault(
        "missing bias, bf16",
        "sound_bf16",
        "no_bias_bf16",
        ("activation", 0, "blocks.1.out"),
        "bias",
    ),
    fault(
        "weight transposed, bf16",
        "sound_bf16",
        "transposed_bf16",
        ("activation", 0, "blocks.1.out"),
        "transposition",
    ),
    fault(
        "last tile, autocast",
        "sound_autocast",
        "last_tile_autocast",
        ("activation", 0, "blocks.1.down"),
        "tile",
    ),
    fault("k and q swapped, autocast", "sound_autocast", "swapped_autocast", MIXED, "permutation"),
    fault(
        "heads merged backwards, bf16",
        "sound_bf16",
        "heads_turned_bf16",
        ("activation", 0, "blocks.0.out.input"),
        "permutation",
    ),
    fault(
        "positions off by one, bf16",
        "sound_bf16",
        "positions_late_bf16",
        ("activation", 0, "blocks.0.norm1.input"),
        "shift",
        fast=True,
    ),
    fault(
        "loss summed, autocast",
        "sound_autocast",
        "summed_autocast",
        ("loss", 0, "loss"),
        "factor",
        fast=True,
    ),
    fault(
        "targets shifted twice, bf16",
        "sound_bf16",
        "targets_shifted_bf16",
        ("loss", 0, "loss"),
        "shift",
    ),
    fault(
        "mean of means, autocast",
        "sound_ragged_autocast",
        "mean_of_means_autocast",
        ("loss", 0, "loss"),
        "mean",
    ),
    fault(
        "norm backward without its variance, bf16",
        "sound_norm_bf16",
        "no_variance_term_bf16",
        ("gradient", 0, "blocks.1.norm2.input"),
        "missing-term",
    ),
    fault(
        "attention backward without scale, autocast",
        "sound_attention_autocast",
        "scale_forgotten_autocast",
        ("gradient", 0, "blocks.1.qkv"),
        "scale",
        fast=True,
    ),
    fault(
        "keys detached, bf16",
        "sound_bf16",
        "keys_detached_bf16",
        ("gradient", 0, "blocks.1.qkv"),
        "zero",
    ),
    fault(
        "no bias correction, autocast",
        "sound_hand_autocast",
        "uncorrected_autocast",
        ("update", 0, "embedding.weight"),
        "bias-correction",
    ),
)
PAIRS = EQUAL + FAULTS
