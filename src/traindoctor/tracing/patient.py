"""A side that is a function of the user's: `file.py:function` gives model, batches, loss_fn and optimizer."""

from __future__ import annotations

import gc
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.compare.trace import Key
from traindoctor.errors import TraindoctorError, in_a_sentence
from traindoctor.ground.torch_private import Dropout, tree_flatten, tree_unflatten
from traindoctor.tracing.rounding import From, rounding
from traindoctor.tracing.steps import Side, Sink, run_steps

PARTS = ("model", "batches", "loss_fn", "optimizer")
SEED = 0
# What an optimizer's first group says that helps to put a difference into words.
SETTINGS = ("lr", "betas", "eps", "weight_decay", "momentum")


@dataclass(frozen=True)
class PatientSide:
    """Where the function is; every run calls it anew, in torch's usual state."""

    file: Path
    function: str

    @property
    def title(self) -> str:
        return f"{self.file}:{self.function}"

    def make(self) -> Side:
        """What the function gives, with dropout switched off: two sides would not drop the same."""
        sys.path.insert(0, str(self.file.resolve().parent))
        torch.manual_seed(SEED)
        names = runpy.run_path(str(self.file), run_name="traindoctor_compare")
        if not callable(names.get(self.function)):
            defined = [n for n, v in names.items() if callable(v) and not n.startswith("_")]
            raise TraindoctorError(
                f"{self.file} has no function {self.function!r}; it defines {', '.join(defined) or 'none'}"
            )
        side = _side(names[self.function](), self.title)
        for module in side.model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
        return side

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights that the function gives; they are gone again afterwards."""
        with usual_state(), self.theirs():
            return {name: tuple(p.shape) for name, p in self.make().names.items()}

    @contextmanager
    def theirs(self) -> Iterator[None]:
        """An error of the user's code is shown whole, and ends in a sentence."""
        try:
            yield
        except TraindoctorError:
            raise
        except Exception as error:
            traceback.print_exception(error)
            raise TraindoctorError(f"{self.title} raised {in_a_sentence(error)}") from None

    def run(
        self,
        sink: Sink,
        steps: int,
        *,
        weights: Mapping[str, Tensor] | None = None,
        batches: list[list[Tensor]] | None = None,
        moved: int | None = None,
        coarse: float = 0.0,
        products: float = 0.0,
        start: Key | None = None,
    ) -> Facts:
        """A few steps into a sink. `weights` and `batches` are those of the other side; `moved` is a seed of rounding.

        Rounding begins behind the tensor `start`, where one is given.
        """
        with usual_state(), self.theirs():
            side = self.make()
            if weights is not None:
                load(side, weights)
            if batches is not None:
                side.batches = given_batches(side.batches, batches)
            facts = Facts.of(side)
            with rounding(moved, coarse=coarse, products=products) as mode:
                if mode is not None and start is not None:
                    sink = From(sink, mode, start)
                run_steps(side, sink, steps)
            del side
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return facts


@dataclass(frozen=True)
class Facts:
    """Of a side, kept when it is gone."""

    shapes: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, Tensor]
    """On the host, those the steps began with."""
    batches: list[list[Tensor]]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, side: Side) -> Facts:
        return cls(
            shapes={name: tuple(p.shape) for name, p in side.names.items()},
            weights={name: p.detach().cpu().clone() for name, p in side.names.items()},
            batches=[_tensors(batch) for batch in side.batches],
            settings=settings_of(side),
        )


def settings_of(side: Side) -> dict[str, Any]:
    """What an optimizer and torch say of themselves."""
    group = side.optimizer.param_groups[0]
    found: dict[str, Any] = {"optimizer": type(side.optimizer).__name__}
    for name in SETTINGS:
        value = group.get(name)
        if name == "betas" and isinstance(value, (tuple, list)):
            found["beta1"], found["beta2"] = float(value[0]), float(value[1])
        elif isinstance(value, (int, float)):
            found[name] = value
    device = next(iter(side.names.values())).device
    found |= {
        "device": device.type,
        "torch": torch.__version__,
        "tf32": device.type == "cuda" and in_tf32(side.model),
    }
    return found


def in_tf32(model: nn.Module) -> bool:
    """Whether products may be made in TF32; cuDNN's layers have a switch of their own, which is on by default."""
    backends = torch.backends
    by_cudnn = (nn.RNNBase, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.modules.conv._ConvTransposeNd)
    return backends.cuda.matmul.allow_tf32 or (
        backends.cudnn.allow_tf32 and any(isinstance(one, by_cudnn) for one in model.modules())
    )


def _tensors(batch: Any) -> list[Tensor]:
    return [
        leaf.detach().cpu().clone() for leaf in tree_flatten(batch)[0] if isinstance(leaf, Tensor)
    ]


def given_batches(own: Any, batches: list[list[Tensor]]) -> list[Any]:
    """The other side's numbers in this side's containers; its own where the tensors do not correspond."""
    found = []
    for batch, numbers in zip(own, batches):
        leaves, shape = tree_flatten(batch)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        mine = [leaves[i] for i in places]
        if [tuple(t.shape) for t in mine] == [tuple(t.shape) for t in numbers]:
            for i, tensor, number in zip(places, mine, numbers):
                leaves[i] = number.to(tensor.device, tensor.dtype)
        found.append(tree_unflatten(leaves, shape))
    return found or list(own)


@torch.no_grad()
def load(side: Side, weights: Mapping[str, Tensor]) -> None:
    """The given weights in the parameters that the side and its optimizer hold."""
    for name, value in weights.items():
        side.names[name].copy_(value.reshape(side.names[name].shape))


def _side(made: Any, title: str) -> Side:
    if isinstance(made, dict):
        lacking = [part for part in PARTS if part not in made]
        if lacking:
            raise TraindoctorError(f"{title} gave a dict without {', '.join(lacking)}")
        made = tuple(made[part] for part in PARTS)
    if not isinstance(made, tuple) or len(made) != len(PARTS):
        what = type(made).__name__ + (f" of {len(made)}" if isinstance(made, tuple) else "")
        raise TraindoctorError(f"{title} must give ({', '.join(PARTS)}), it gave {what}")
    model, batches, loss_fn, optimizer = made
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise TraindoctorError(
            f"{title} must give (model, batches, loss_fn, optimizer) in this order: an nn.Module first, a "
            f"torch.optim.Optimizer last; it gave {type(model).__name__} and {type(optimizer).__name__}"
        )
    listed = list(batches) if isinstance(batches, (list, tuple)) else [batches]
    # A pair of tensors is one batch, not two.
    if isinstance(batches, tuple) and all(isinstance(part, Tensor) for part in batches):
        listed = [batches]
    if not listed:
        raise TraindoctorError(f"{title} gave no batch")
    return Side(model, listed, loss_fn, optimizer)


@contextmanager
def usual_state() -> Iterator[None]:
    """Inside a side may set what it likes: torch's switches, sys.path and its own modules are as before afterwards."""
    path, modules = list(sys.path), set(sys.modules)
    default = torch.get_default_dtype()
    precision = torch.get_float32_matmul_precision()
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            # Two sides in two folders may each have a module called `model`.
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file and "site-packages" not in file and not file.startswith(sys.base_prefix):
                if not name.startswith("traindoctor"):
                    del sys.modules[name]
        torch.set_default_dtype(default)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags
        torch.use_deterministic_algorithms(deterministic)
