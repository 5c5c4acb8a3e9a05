"""Calls an action once a module has been imported; look-ups and failed imports change nothing.

Child interpreters load this file at their start, torch or not, so it imports nothing but what Python has loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder that stays in `sys.meta_path` until the module `name` has been executed without an error.

    Libraries ask `importlib.util.find_spec("torch")` long before anyone imports torch, so a look-up says nothing.
    """

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self.action = action
        self._called = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = self._found_by_others(fullname, path, target)
        loader = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module") and not isinstance(loader, type):
            self._listen(loader)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        # Asked one by one: a switch that lets our own look-up pass would be open to other threads too.
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _listen(self, loader: Any) -> None:
        """The loader stays Python's own object: it has one attribute more until it is used."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if module.__name__ == self.name:
                self._imported()

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            return  # a loader that takes no attribute: the module is imported, and we never hear of it

    def _imported(self) -> None:
        if self._called:
            return
        self._called = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self.action()
