"""Every setting of a training run, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from traindoctor.errors import ConfigError

# 1: first format. 2: `gelu` is the exact one; what format 1 called so is `gelu-tanh`.
FORMAT = 2

# Multiples of this keep the rows of the feed-forward weights aligned for vector units and tensor cores.
HIDDEN_MULTIPLE = 32


# Byte-level tokenizers keep a token for each of the 256 bytes.
LEAST_VOCAB = {"char": 257, "word": 2, "bpe": 256}
WHY_LEAST = {
    "char": "256 tokens stand for the bytes of rare characters; leave it away for all characters",
    "word": "one token stands for all unknown words",
    "bpe": "each byte is a token; choose 512 or more",
}
# No machine of today holds more; what is larger is a mistake, and would only fail later and slower.
MOST = {"layers": 10_000, "heads": 1 << 16, "width": 1 << 20, "block": 1 << 20, "hidden": 1 << 24}
MOST_COUNT = 10**12
# torch's generators take seeds of 63 bits.
MOST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of the transformer."""

    layers: int = 4
    """transformer blocks"""
    heads: int = 4
    """attention heads per block"""
    kv_heads: int = 0
    """key/value heads (grouped-query attention); 0: as many as heads"""
    width: int = 128
    """size of the residual stream"""
    hidden: int = 0
    """size inside the feed-forward part; 0: 4 x width, or 8/3 x width with swiglu"""
    block: int = 128
    """context length in tokens"""
    norm: Literal["rms", "layer"] = "rms"
    """normalisation before each branch"""
    positions: Literal["rotary", "learned"] = "rotary"
    """how the order of the tokens gets in"""
    mlp: Literal["swiglu", "gelu", "gelu-tanh"] = "swiglu"
    """the feed-forward part; gelu-tanh is GPT-2's approximation, three times as slow as gelu on a CPU"""
    tied: bool = True
    """output weights are the embedding"""
    bias: bool = False
    """biases in linear layers (and in LayerNorm)"""
    dropout: float = 0.0
    """share of activations dropped while training"""
    init: Literal["scaled", "xavier"] = "scaled"
    """normal(0.02) with scaled residual branches, or Xavier"""
    checkpointing: bool = False
    """recompute each block in the backward pass: less memory, about a third slower"""

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "block"):
            _between(name, getattr(self, name), 1, MOST[name])
        _between("kv-heads", self.kv_heads, 0, MOST["heads"])
        _between("hidden", self.hidden, 0, MOST["hidden"])
        _between("dropout", self.dropout, 0, 1, open_end=True)
        if self.width % self.heads:
            raise ConfigError(
                f"{self.heads} heads do not divide a width of {self.width}: "
                f"choose --heads {_nearest_divisor(self.width, self.heads)} or another --width"
            )
        if self.heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.kv_heads} key/value heads do not divide {self.heads} heads: "
                f"choose --kv-heads {_nearest_divisor(self.heads, self.kv_heads)}"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise ConfigError(
                f"rotary positions need an even head size, width/heads is {self.head_size}: "
                "choose another --width or --heads, or --positions learned"
            )

    @property
    def head_size(self) -> int:
        return self.width // self.heads

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def hidden_size(self) -> int:
        if self.hidden:
            return self.hidden
        if self.mlp == "swiglu":
            return math.ceil(self.width * 8 / 3 / HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE
        return 4 * self.width

    def num_parameters(self, vocab_size: int) -> int:
        """The parameter count, without building the model."""
        D, H, KV = self.width, self.hidden_size, self.num_kv_heads * self.head_size
        norm = D * (1 + (self.norm == "layer" and self.bias))
        mlp_in = 2 * H if self.mlp == "swiglu" else H
        matrices = D * (D + 2 * KV) + D * D + D * mlp_in + H * D
        biases = (D + 2 * KV) + D + mlp_in + D if self.bias else 0
        outside = vocab_size * D * (1 if self.tied else 2) + norm
        outside += self.block * D if self.positions == "learned" else 0
        return outside + self.layers * (matrices + biases + 2 * norm)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text and how it becomes tokens."""

    data: tuple[str, ...] = ()
    """files or folders of UTF-8 text, or - for standard input; none: an embedded English text"""
    tokenizer: Literal["char", "word", "bpe"] = "char"
    """what a token is"""
    vocab_size: int = 0
    """size of the vocabulary; 0: 4096 for bpe and word, all characters for char"""
    val_fraction: float = 0.1
    """share of the text kept for validation"""
    sampling: Literal["random", "epochs"] = "random"
    """random blocks, or each block exactly once per epoch"""
    augment: int = 0
    """extra copies of the training text with words deleted and swapped (for tiny texts)"""
    augment_rate: float = 0.05
    """share of words deleted, and of neighbours swapped, in those copies"""

    def __post_init__(self) -> None:
        _at_least("vocab-size", self.vocab_size, 0)
        _at_least("augment", self.augment, 0)
        _between("val-fraction", self.val_fraction, 0, 0.5)
        _between("augment-rate", self.augment_rate, 0, 1)
        if 0 < self.vocab_size < LEAST_VOCAB[self.tokenizer]:
            raise ConfigError(
                f"--tokenizer {self.tokenizer} needs a --vocab-size of at least {LEAST_VOCAB[self.tokenizer]}, "
                f"not {self.vocab_size}: " + WHY_LEAST[self.tokenizer]
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop: how long, how fast, on what, what is kept."""

    steps: int = 2000
    """optimizer steps"""
    epochs: float = 0.0
    """passes over the training text instead of steps"""
    minutes: float = 0.0
    """wall-clock time instead of steps (the schedule then follows the clock)"""
    batch: int = 16
    """rows per forward pass, over all processes"""
    accumulation: int = 1
    """forward passes per optimizer step"""
    lr: float = 2e-3
    """peak learning rate"""
    lr_floor: float = 0.05
    """the cosine ends at this share of the peak"""
    warmup: int = 100
    """steps of linear warm-up (at most a tenth of the run)"""
    weight_decay: float = 0.1
    """AdamW decay, on matrices only"""
    beta1: float = 0.9
    """AdamW: memory of the gradient"""
    beta2: float = 0.95
    """AdamW: memory of its square"""
    clip: float = 1.0
    """largest global gradient norm; 0: no clipping"""
    seed: int = 1
    """of weights, batches, dropout and samples"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps"""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """bf16: autocast; auto: bf16 where it is known to pay"""
    compile: bool = False
    """torch.compile the model (a minute at the start)"""
    fused_loss: Literal["auto", "on", "off"] = "auto"
    """output layer and loss in one, without the logits in memory; auto: where it is faster"""
    shard: bool = False
    """under torchrun: FSDP2 (weights sharded) instead of DDP"""
    eval_every: int = 200
    """steps between validations"""
    eval_blocks: int = 64
    """blocks of the validation text that are read each time"""
    patience: int = 0
    """stop after so many validations without a new best; 0: never"""
    save_every: int = 0
    """steps between checkpoints; 0: at every validation"""
    keep: int = 2
    """last checkpoints kept, besides the best"""
    sample_tokens: int = 160
    """length of the sample written at each validation; 0: none"""
    sample_temperature: float = 0.8
    """of that sample; 0: always the likeliest token"""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulation", "eval_every", "eval_blocks", "keep"):
            _at_least(name.replace("_", "-"), getattr(self, name), 1)
        for name in ("epochs", "minutes", "warmup", "weight_decay", "clip", "patience"):
            _at_least(name.replace("_", "-"), getattr(self, name), 0)
        for name in ("save_every", "sample_tokens"):
            _at_least(name.replace("_", "-"), getattr(self, name), 0)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"--lr must be a number above 0, not {self.lr}")
        _between("lr-floor", self.lr_floor, 0, 1)
        _between("sample-temperature", self.sample_temperature, 0, 100)
        _between("beta1", self.beta1, 0, 1, open_end=True)
        _between("beta2", self.beta2, 0, 1, open_end=True)
        _between("seed", self.seed, 0, MOST_SEED)
        if self.epochs and self.minutes:
            raise ConfigError("--epochs and --minutes both say how long to train: give one of them")


# Settings that may differ from the stored ones when a run is resumed: none of them changes what a step does.
MAY_CHANGE = frozenset(
    "steps epochs minutes device compile fused_loss shard checkpointing eval_every eval_blocks patience save_every keep "
    "sample_tokens sample_temperature".split()
)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run; kept with it as config.json."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    preset: str = "small"

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def flat(self) -> dict[str, Any]:
        """All settings by their unique names."""
        parts = (self.model, self.data, self.train)
        return {k: v for part in parts for k, v in dataclasses.asdict(part).items()}

    def replace(self, **changes: Any) -> RunConfig:
        """The same run with other settings, each by its unique name."""
        parts: dict[str, Any] = {}
        for section, cls in SECTIONS.items():
            own = {
                f.name: changes.pop(f.name) for f in dataclasses.fields(cls) if f.name in changes
            }
            parts[section] = dataclasses.replace(getattr(self, section), **own)
        if changes:
            raise TypeError(f"no such settings: {', '.join(changes)}")
        return dataclasses.replace(self, **parts)


SECTIONS: dict[str, type] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}


def _shown(value: float) -> str:
    """As it was given; a whole number can have more digits than anybody reads."""
    return str(value) if abs(value) <= 10**18 else "a number of more than 18 digits"


def _at_least(option: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"--{option} must be at least {least}, not {_shown(value)}")
    if value > MOST_COUNT:
        raise ConfigError(f"--{option} must be at most {MOST_COUNT}, not {_shown(value)}")


def _between(option: str, value: float, low: float, high: float, *, open_end: bool = False) -> None:
    if not (low <= value <= high) or (open_end and value == high):
        below = "below" if open_end else "at most"
        raise ConfigError(
            f"--{option} must be at least {low} and {below} {high}, not {_shown(value)}"
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    for distance in range(number):
        for divisor in (wanted - distance, wanted + distance):
            if 1 <= divisor <= number and number % divisor == 0:
                return divisor
    return 1
