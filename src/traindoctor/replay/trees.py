"""The module trees a run has called, walked anew each time: modules may be replaced while it goes on."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from torch import Tensor, nn

from traindoctor.replay.names import clean, unwrap


class ModuleTrees:
    """The outermost modules of a run, held weakly.

    `Names` keeps what a parameter was called when it was first seen; here the question is what the trees hold
    now, which is how a parameter that was replaced behind the optimizer's back is found.
    """

    def __init__(self) -> None:
        self._roots: list[weakref.ref[nn.Module]] = []
        self._known: set[int] = set()

    def learn(self, module: nn.Module) -> None:
        """Keeps a module that was called outermost."""
        if id(module) not in self._known:
            self._known.add(id(module))
            self._roots.append(weakref.ref(unwrap(module)))

    @property
    def roots(self) -> list[nn.Module]:
        return [module for ref in self._roots if (module := ref()) is not None]

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter once. With several trees the second and later ones are named by class."""
        seen: set[int] = set()
        for number, root in enumerate(self.roots):
            prefix = "" if number == 0 else f"{type(root).__name__}."
            for name, parameter in root.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield prefix + clean(name), parameter

    def names(self) -> dict[int, str]:
        return {id(parameter): name for name, parameter in self.parameters()}
