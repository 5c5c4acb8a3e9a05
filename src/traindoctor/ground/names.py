"""Names of parameters and modules: one place that turns a tensor of the run into what a reader calls it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.ground.our_ref import OurRef

SHARDED = "the weights are sharded over ranks: one rank cannot run a step again alone"


def unwrap(module: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile's and DistributedDataParallel's wrappers."""
    seen: set[int] = set()
    while id(module) not in seen:
        seen.add(id(module))
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.parallel.DistributedDataParallel):
            inner = module.module
        if inner is None and isinstance(module, nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner
    return module


def is_compiled(module: nn.Module) -> bool:
    """By `torch.compile(module)` or `module.compile()`, itself and not what it holds."""
    return "_orig_mod" in module._modules or vars(module).get("_compiled_call_impl") is not None


_compiled_functions = 0


def function_compiled() -> None:
    """The script compiled a function: any module may call it."""
    global _compiled_functions
    _compiled_functions += 1


def may_run_compiled(root: nn.Module) -> bool:
    """A mode of ours around compiled code would make torch compile it again."""
    return _compiled_functions > 0 or any(is_compiled(module) for module in root.modules())


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None and hasattr(tensor, "placements") else tensor


def has_values(tensor: Tensor) -> bool:
    """Not of the meta device, and not the whole of a sharded parameter whose memory was given back."""
    part = local(tensor)
    if part.is_meta:
        return False
    return part.layout != torch.strided or not part.numel() or part.untyped_storage().nbytes() > 0


def sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether any is one rank's part of a whole (FSDP, tensor parallel): one rank cannot replay that alone."""
    return any(hasattr(t, "placements") or hasattr(t, "_is_flat_param") for t in tensors)


def clean(name: str) -> str:
    """`_orig_mod.blocks.0._checkpoint_wrapped_module.w` reads `blocks.0.w`."""
    drop = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
    return ".".join(part for part in name.split(".") if part not in drop)


class Names:
    """Names by identity. Holds no tensor alive; a tied parameter keeps its first name."""

    def __init__(self, *modules: nn.Module) -> None:
        self._tensors: dict[int, tuple[OurRef, str, str]] = {}
        self._modules: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        self._roots: list[weakref.ref[nn.Module]] = []
        self._taken: dict[str, int] = {}
        """Name -> tensors that were to have it: the second of the name `w` is `w'`, the third `w'2`."""
        for module in modules:
            self.add_module(module)

    def add_module(self, module: nn.Module, prefix: str = "") -> None:
        """A root: its parameters, buffers and modules get their names. A second root gets its class as prefix."""
        root = unwrap(module)
        if any(known() is root for known in self._roots):
            self._read(root, prefix)
            return
        if self._roots and not prefix:
            prefix = type(root).__name__
        self._roots.append(weakref.ref(root))
        self._read(root, prefix)

    def _read(self, root: nn.Module, prefix: str) -> None:
        for path, module in root.named_modules():
            if not self._module_entry(module):
                name = clean(".".join(filter(None, (prefix, path))))
                self._modules[id(module)] = (weakref.ref(module), name)
        for name, parameter in root.named_parameters(prefix):
            self._put(parameter, clean(name), "parameter")
        for name, buffer in root.named_buffers(prefix):
            self._put(buffer, clean(name), "buffer")

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Parameters of an optimizer that no module is known for."""
        for tensor in tensors:
            if self._entry(tensor) is None:
                number = sum(kind == "parameter" for _, _, kind in self._tensors.values())
                self._put(tensor, describe(tensor, number), "parameter")

    def _put(self, tensor: Tensor, name: str, kind: str) -> None:
        if self._entry(tensor) is not None:
            return
        own, count = name, self._taken.get(name, 0)
        while own in self._taken:
            own = f"{name}'{count if count > 1 else ''}"
            count += 1
        self._taken[name] = max(1, count)
        self._taken.setdefault(own, 1)
        self._tensors[id(tensor)] = (OurRef(tensor), own, kind)

    def stands_for(self, copy: Tensor, original: Tensor) -> None:
        """A copy that is put in place of a known tensor for a while has its name."""
        found = self._entry(original)
        if found is not None:
            self._tensors[id(copy)] = (OurRef(copy), *found[1:])

    def _entry(self, tensor: Tensor) -> tuple[OurRef, str, str] | None:
        found = self._tensors.get(id(tensor))
        return found if found is not None and found[0]() is tensor else None

    def _module_entry(self, module: nn.Module) -> tuple[weakref.ref[nn.Module], str] | None:
        found = self._modules.get(id(module))
        return found if found is not None and found[0]() is module else None

    def has(self, tensor: Tensor) -> bool:
        return self._entry(tensor) is not None

    def is_buffer(self, tensor: Tensor) -> bool:
        found = self._entry(tensor)
        return found is not None and found[2] == "buffer"

    def of(self, tensor: Tensor) -> str:
        """The parameter's name; a tensor of no known module is named by number and shape, and kept."""
        found = self._entry(tensor)
        if found is None:
            self.add_tensors([tensor])
            found = self._entry(tensor)
            assert found is not None
        return found[1]

    def of_module(self, module: Any) -> str:
        """The path in the root module, '' for the root itself, the class for a stranger."""
        found = self._module_entry(module)
        if found is None:
            found = self._module_entry(unwrap(module))
        if found is None:
            return type(module).__name__
        return found[1]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All named parameters that still exist and have values now."""
        for weak, name, kind in list(self._tensors.values()):
            tensor = weak()
            if tensor is not None and kind == "parameter" and has_values(tensor):
                yield name, tensor

    def tensor(self, name: str) -> Tensor | None:
        for weak, known, _ in self._tensors.values():
            if known == name:
                return weak()
        return None


def describe(tensor: Tensor, number: int) -> str:
    """`param 3 (1500×64)`: what a parameter is called that belongs to no known module."""
    shape = "×".join(str(size) for size in tensor.shape) or "scalar"
    return f"param {number} ({shape})"


def is_trainable_leaf(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad and torch.is_floating_point(tensor)
