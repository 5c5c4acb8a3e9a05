"""Weak references of ours to the script's tensors, told from all others by their class.

torch exchanges the insides of two tensors (`swap_tensors`, `Module.to` under `set_swap_module_params_on_conversion`) only
where no weak reference knows them. Ours know a tensor by its identity, which an exchange keeps: they are not counted there.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    Base = weakref.ref[Tensor]
else:
    Base = weakref.ref


class OurRef(Base):
    __slots__ = ()


class Uncounted:
    """The module `weakref` without ours."""

    def getweakrefs(self, of: Any) -> list[Any]:
        return [one for one in weakref.getweakrefs(of) if type(one) is not OurRef]

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)
