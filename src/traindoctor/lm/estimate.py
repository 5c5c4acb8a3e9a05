"""What a run will need and give, told before its first step: memory, precision, size against text."""

import os

import torch

from traindoctor.errors import TraindoctorError
from traindoctor.lm.config import ModelConfig

# weights, gradients and the two moments of AdamW, all float32
BYTES_PER_PARAMETER = 16
# About 20 tokens per parameter is compute-optimal (Hoffmann et al. 2022); a factor of 100 on either side is
# "far": a model a hundred times too large has learned by heart what it can, one too small wastes the text.
OPTIMAL_TOKENS = 20
FAR = 100
# Estimates are 20 % exact, and the fused loss needs less: twice the memory is out of reach for certain.
IMPOSSIBLE = 2
# On a CPU with bf16 matrix units autocast gave 2.5 x at width 384 and 0.76 x at width 128: the casts cost more
# than small products gain. The crossing lies between.
BF16_WIDTH_ON_CPU = 256


def bf16_pays(device: torch.device, width: int) -> bool:
    """Whether autocast to bf16 is known to make a run faster."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and width >= BF16_WIDTH_ON_CPU and cpu_has_bf16_units()


def cpu_has_bf16_units() -> bool:
    """AMX or AVX512-BF16 on x86, the bf16 extension on Arm. Without them bf16 is emulated, far slower."""
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        supported = getattr(torch.cpu, name, None)
        if supported is not None and supported():
            return True
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("bf16"))


def activation_bytes(config: ModelConfig, vocab_size: int, rows: int, *, bf16: bool) -> int:
    """What one forward pass keeps for its backward pass, in bytes."""
    D, F, V = config.width, config.hidden_size, vocab_size
    KV = config.num_kv_heads * config.head_size
    size = 2 if bf16 else 4
    tokens = rows * config.block
    stream = 2 * D * 4  # the residual stream before each branch stays float32
    normed = 2 * D * (4 if config.norm == "layer" else 8) // (2 if bf16 else 1)
    heads = (2 * D + 2 * KV) * size  # queries, keys, values and what attention gives
    if config.positions == "rotary":
        heads += (D + KV) * size
    inside = (4 if config.mlp == "swiglu" else 2) * F * size
    dropped = 3 * D if config.dropout else 0  # masks
    layer = stream + normed + heads + inside + dropped
    if config.checkpointing:
        # The input of each block, and the inside of the one that is being recomputed.
        layers = config.layers * D * 4 + layer
    else:
        layers = config.layers * layer
    logits = V * (
        4 + 4 + (2 if bf16 else 0)
    )  # logits, log-softmax or its gradient, the bf16 original
    return tokens * (layers + logits + 3 * D * 4)


def peak_bytes(
    config: ModelConfig, vocab_size: int, rows: int, *, bf16: bool, shards: int = 1
) -> int:
    """The peak of a training step: parameters, gradients, moments and activations (about 20 % exact)."""
    parameters = config.num_parameters(vocab_size) * BYTES_PER_PARAMETER // shards
    return parameters + activation_bytes(config, vocab_size, rows, bf16=bf16)


def total_memory(device: torch.device) -> int:
    """Bytes of memory that the device has; 0 where that cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 0


def is_impossible(peak: int, device: torch.device) -> bool:
    """Whether a run is so far beyond the memory that trying would only make the system kill it."""
    return 0 < total_memory(device) * IMPOSSIBLE < peak


def size_warning(parameters: int, tokens: int) -> str | None:
    """A sentence when the model is far too large or too small for the text."""
    ratio = tokens / parameters
    if ratio < OPTIMAL_TOKENS / FAR:
        return (
            f"the model is far too large for this text: {parameters:,} parameters for {tokens:,} tokens; it will "
            "memorise the text: watch the validation loss, or choose a smaller --preset or --dropout 0.2"
        )
    if ratio > OPTIMAL_TOKENS * FAR:
        return (
            f"the model is far too small for this text: {parameters:,} parameters for {tokens:,} tokens; "
            "a larger --preset will learn more from it"
        )
    return None


def out_of_memory(
    config: ModelConfig,
    vocab_size: int,
    rows: int,
    accumulation: int,
    *,
    bf16: bool,
    fused: bool = False,
) -> TraindoctorError:
    """What to turn when memory has run out, with what each would need."""
    import dataclasses

    def need(
        rows: int = rows, vocab: int = vocab_size, checkpointing: bool = config.checkpointing
    ) -> str:
        changed = dataclasses.replace(config, checkpointing=checkpointing)
        return human_bytes(peak_bytes(changed, vocab, rows, bf16=bf16))

    ways = []
    if rows > 1:
        half = max(rows // 2, 1)
        ways.append(
            f"--batch {half} --accumulation {accumulation * -(-rows // half)} (same result, about {need(half)})"
        )
    if not config.checkpointing:
        ways.append(f"--checkpointing (about {need(checkpointing=True)}, a third slower)")
    if vocab_size >= 2048 and not fused:
        logits = human_bytes(rows * config.block * vocab_size * 8)
        ways.append(f"--fused-loss on (the logits take about {logits})")
    if vocab_size > 8192:
        ways.append(f"--vocab-size {vocab_size // 2} (about {need(vocab=vocab_size // 2)})")
    if not bf16:
        saved = human_bytes(peak_bytes(config, vocab_size, rows, bf16=True))
        ways.append(f"--precision bf16 (about {saved})")
    return TraindoctorError(
        f"there is not enough memory: this run needs about {need()}; what was saved before is whole; go on with "
        + ", or ".join(ways or ["a smaller --width or --block"]),
        slug="out-of-memory",
    )


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
