"""Where settings come from: defaults, then a preset, then a TOML file, then the command line."""

import ast
import dataclasses
import difflib
import itertools
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from traindoctor.errors import CheckpointError, ConfigError
from traindoctor.lm import config as definitions
from traindoctor.lm.config import (
    FORMAT,
    MAY_CHANGE,
    SECTIONS,
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from traindoctor.lm.presets import PRESETS
from traindoctor.plain_files import read_json, read_text, without_recursion

# Each of these says how long to train.
LENGTHS = ("steps", "epochs", "minutes")


def resolve(
    *, preset: str | None = None, file: Path | None = None, given: Mapping[str, Any] | None = None
) -> RunConfig:
    """`resolve(preset="base", given={"steps": 100})`: later sources win, an unknown name is an error."""
    from_file = read_toml(file) if file else {}
    name = preset or from_file.pop("preset", None) or "small"
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    chosen = later_wins(from_file, given or {})
    if chosen.get("epochs"):
        chosen.setdefault("sampling", "epochs")
    return build({**PRESETS[name][1], **chosen}, preset=name)


def later_wins(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all sources; one that says how long to train takes back what an earlier one said."""
    chosen: dict[str, Any] = {}
    for source in sources:
        if any(source.get(name) for name in LENGTHS):
            chosen = {name: value for name, value in chosen.items() if name not in LENGTHS}
        chosen |= one_length(source)
    return chosen


def one_length(source: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the length they do not say set to none; they may say one."""
    said = [name for name in LENGTHS if source.get(name)]
    if len(said) > 1:
        told = " and ".join(f"--{name} {source[name]}" for name in said)
        raise ConfigError(f"{told} all say how long to train: give one of them")
    if not said:
        return dict(source)
    return {**{name: 0 for name in LENGTHS if name not in (*said, "steps")}, **source}


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
            raise ConfigError(f"there is no setting {_short(name)}{hint}")
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
        text = read_text(file)
        tables = without_recursion(lambda: tomllib.loads(text))
    except OSError as error:
        raise ConfigError(f"cannot read the settings {file}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from error
    homes = {f.name: name for name, cls in SECTIONS.items() for f in dataclasses.fields(cls)}
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if isinstance(value, dict):
            if name not in SECTIONS:
                raise ConfigError(f"{file}: there is no table [{name}]: use {', '.join(SECTIONS)}")
            for key, inside in value.items():
                home = homes.get(key.replace("-", "_"), name)
                if home != name:
                    raise ConfigError(
                        f"{file}: {key!r} belongs to the table [{home}], not [{name}]"
                    )
                flat[key] = inside
        else:
            flat[name] = value
    return {name.replace("-", "_"): value for name, value in flat.items()}


def load_config(file: Path) -> RunConfig:
    """The config.json of a run."""
    try:
        stored = read_json(file)
        if not 1 <= stored["format"] <= FORMAT:
            raise CheckpointError(
                f"{file} has format {stored['format']}, this traindoctor reads up to {FORMAT}: update traindoctor"
            )
        flat = {k: v for section in SECTIONS for k, v in stored[section].items()}
        if stored["format"] == 1 and flat["mlp"] == "gelu":
            flat["mlp"] = "gelu-tanh"
        if not isinstance(stored["preset"], str) or stored["preset"] not in PRESETS:
            raise ValueError("its preset is unknown")
        return build(flat, preset=stored["preset"])
    except ConfigError as error:
        raise CheckpointError(
            f"{file} does not hold the settings of a run ({error}): put it back from a copy, or start a new run"
        ) from error
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{file.parent} is not a run of `traindoctor train`: it has no {file.name}"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}): put it back from a copy, or start a new run"
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file} does not hold the settings of a run: put it back from a copy, or start a new run"
        ) from error


def resumed(stored: RunConfig, given: Mapping[str, Any]) -> RunConfig:
    """The stored settings with those of `given` that may change; any other difference is an error."""
    flat = stored.flat()
    given = one_length(given)
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
                f"{option} must be one of {', '.join(typing.get_args(kind))}, not {_short(value)}"
            )
        return value
    if isinstance(kind, types.GenericAlias):
        items = (value,) if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) for i in items):
            raise ConfigError(f"{option} must be a path or a list of paths, not {_short(value)}")
        return tuple(items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(option, value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise ConfigError(f"{option} must be {names[kind]}, not {_short(value)}")
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{option} must be a finite number, not {value}")
    return value


def _short(value: Any) -> str:
    """A wrong value as it is shown: whole numbers can have more digits than Python writes out."""
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number of more than 18 digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _as_float(option: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{option} must be a finite number, not one of so many digits") from None


@dataclass(frozen=True)
class Setting:
    """A setting as a user meets it."""

    name: str
    section: str
    kind: Any
    default: Any
    text: str


def settings() -> list[Setting]:
    """Every setting with its line of help: the string that stands under its field in config.py."""
    tree = ast.parse(Path(definitions.__file__).read_text(encoding="utf-8"))
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
