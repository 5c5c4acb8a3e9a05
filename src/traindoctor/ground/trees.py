"""The module trees a run has called, walked anew each time: modules may be replaced while it goes on."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor, nn

from traindoctor.ground.names import clean, unwrap


class ModuleTrees:
    """The outermost modules of a run, held weakly.

    `Names` keeps what a parameter was called when it was first seen; here the question is what the trees hold
    now, which is how a parameter that was replaced behind the optimizer's back is found.
    """

    def __init__(self) -> None:
        self._roots: list[weakref.ref[nn.Module]] = []
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        """By identity, which a later module may get again."""

    def learn(self, module: nn.Module) -> None:
        """Keeps a module that was called outermost."""
        known = self._known.get(id(module))
        if known is None or known() is not module:
            self._known[id(module)] = weakref.ref(module)
            self._roots.append(weakref.ref(unwrap(module)))

    @property
    def roots(self) -> list[nn.Module]:
        return [module for ref in self._roots if (module := ref()) is not None]

    @property
    def whole(self) -> bool:
        """Whether every module that was called still exists."""
        return all(ref() is not None for ref in self._roots)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter once, the unregistered last. With several trees the second and later ones are named by class."""
        seen: set[int] = set()
        for number, root in enumerate(self.roots):
            prefix = "" if number == 0 else f"{type(root).__name__}."
            for name, parameter in (*root.named_parameters(), *unregistered(root)):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield prefix + clean(name), parameter

    def names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.parameters()}


def unregistered(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters of modules that lie in a plain list or dict of a module: torch does not know them as its own."""
    for path, module in root.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_") and isinstance(value, list | tuple | dict):
                for place, held in value.items() if isinstance(value, dict) else enumerate(value):
                    name = f"{path}.{key}[{place}]" if path else f"{key}[{place}]"
                    if isinstance(held, nn.Module):
                        for inner, parameter in held.named_parameters():
                            yield f"{name}.{inner}", parameter
                    elif isinstance(held, nn.Parameter):
                        yield name, held
