"""Every setting of a training run: defaults, then a preset, then a TOML file, then the command line."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import itertools
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from traindoctor.errors import CheckpointError, ConfigError

# 1: first format.
FORMAT = 1

# Multiples of this keep the rows of the feed-forward weights aligned for vector units and tensor cores.
HIDDEN_MULTIPLE = 32


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
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    """the feed-forward part"""
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
            _at_least(name, getattr(self, name), 1)
        _at_least("kv-heads", self.kv_heads, 0)
        _at_least("hidden", self.hidden, 0)
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
        if self.mlp == "gelu":
            return 4 * self.width
        return math.ceil(self.width * 8 / 3 / HIDDEN_MULTIPLE) * HIDDEN_MULTIPLE

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
        if self.tokenizer == "bpe" and 0 < self.vocab_size < 256:
            raise ConfigError(
                f"byte-level bpe needs at least the 256 bytes, --vocab-size is {self.vocab_size}: "
                "choose 512 or more"
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

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulation", "eval_every", "eval_blocks", "keep"):
            _at_least(name.replace("_", "-"), getattr(self, name), 1)
        for name in ("epochs", "minutes", "warmup", "weight_decay", "clip", "patience"):
            _at_least(name.replace("_", "-"), getattr(self, name), 0)
        for name in ("save_every", "sample_tokens", "seed"):
            _at_least(name.replace("_", "-"), getattr(self, name), 0)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"--lr must be a number above 0, not {self.lr}")
        _between("lr-floor", self.lr_floor, 0, 1)
        _between("beta1", self.beta1, 0, 1, open_end=True)
        _between("beta2", self.beta2, 0, 1, open_end=True)
        if self.epochs and self.minutes:
            raise ConfigError("--epochs and --minutes both say how long to train: give one of them")


# Settings that may differ from the stored ones when a run is resumed: none of them changes what a step does.
MAY_CHANGE = frozenset(
    "steps epochs minutes device compile fused_loss shard checkpointing eval_every eval_blocks patience save_every keep "
    "sample_tokens".split()
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
        return build({**self.flat(), **changes}, preset=self.preset)


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
            "mlp": "gelu",
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

SECTIONS: dict[str, type] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}


def resolve(
    *, preset: str | None = None, file: Path | None = None, given: Mapping[str, Any] | None = None
) -> RunConfig:
    """`resolve(preset="base", given={"steps": 100})`: later sources win, an unknown name is an error."""
    from_file = read_toml(file) if file else {}
    name = preset or from_file.pop("preset", None) or "small"
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    settings = {**PRESETS[name][1], **from_file, **(given or {})}
    if settings.get("epochs") and "sampling" not in {**from_file, **(given or {})}:
        settings["sampling"] = "epochs"
    return build(settings, preset=name)


def build(settings: Mapping[str, Any], *, preset: str = "small") -> RunConfig:
    """A RunConfig from flat settings; unknown names and wrong types are told in the user's words."""
    kinds = {
        name: (section, kind)
        for section, cls in SECTIONS.items()
        for name, kind in typing.get_type_hints(cls).items()
    }
    parts: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in settings.items():
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"there is no setting {name!r}{hint}")
        section, kind = kinds[name]
        parts[section][name] = _as_kind(name, value, kind)
    return RunConfig(
        model=ModelConfig(**parts["model"]),
        data=DataConfig(**parts["data"]),
        train=TrainConfig(**parts["train"]),
        preset=preset,
    )


def read_toml(file: Path) -> dict[str, Any]:
    """Settings of a TOML file, flat or in tables [model], [data], [train]; `learning-rate` style is fine."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from error
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            if name not in SECTIONS:
                raise ConfigError(f"{file}: there is no table [{name}]: use {', '.join(SECTIONS)}")
            flat.update(value)
        else:
            flat[name] = value
    return {name.replace("-", "_"): value for name, value in flat.items()}


def load_config(file: Path) -> RunConfig:
    """The config.json of a run."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["format"] > FORMAT:
            raise CheckpointError(
                f"{file} has format {stored['format']}, this traindoctor reads up to {FORMAT}: update traindoctor"
            )
        flat = {k: v for section in SECTIONS for k, v in stored[section].items()}
        return build(flat, preset=stored["preset"])
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file.parent} is not a run of `traindoctor train`: it has no {file.name}"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def resumed(stored: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """The stored settings with those of `given` that may change; any other difference is an error."""
    flat = stored.flat()
    wanted = build({**flat, **given}, preset=stored.preset).flat()
    clashes = [k for k in given if k not in MAY_CHANGE and wanted[k] != flat[k]]
    if clashes:
        told = ", ".join(f"--{k.replace('_', '-')} {flat[k]} (now {wanted[k]})" for k in clashes)
        raise ConfigError(
            f"the run was made with {told}: resume without them, or start a new run with --out"
        )
    return stored.replace(**{k: wanted[k] for k in given})


def _as_kind(name: str, value: Any, kind: Any) -> Any:
    """`value` as the annotated type, or a sentence. A whole number is a float too; lists become tuples."""
    option = f"--{name.replace('_', '-')}"
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise ConfigError(
                f"{option} must be one of {', '.join(typing.get_args(kind))}, not {value!r}"
            )
        return value
    if isinstance(kind, types.GenericAlias):
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) for i in items):
            raise ConfigError(f"{option} must be a path or a list of paths, not {value!r}")
        return tuple(items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ConfigError(f"{option} must be {names[kind]}, not {value!r}")
    return value


def _at_least(option: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"--{option} must be at least {least}, not {value}")


def _between(option: str, value: float, low: float, high: float, *, open_end: bool = False) -> None:
    if not (low <= value <= high) or (open_end and value == high):
        below = "below" if open_end else "at most"
        raise ConfigError(f"--{option} must be at least {low} and {below} {high}, not {value}")


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda d: abs(d - wanted))


@dataclass(frozen=True)
class Setting:
    """A setting as a user meets it."""

    name: str
    section: str
    kind: Any
    default: Any
    text: str


def settings() -> list[Setting]:
    """Every setting with its line of help: the string that stands under the field above."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    texts: dict[tuple[str, str], str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for line, below in itertools.pairwise(node.body):
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                        texts[node.name, line.target.id] = str(below.value.value)
    return [
        Setting(f.name, section, kind, f.default, texts[cls.__name__, f.name])
        for section, cls in SECTIONS.items()
        for f, kind in zip(dataclasses.fields(cls), typing.get_type_hints(cls).values())
    ]
